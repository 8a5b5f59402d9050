# The C++ module (csrc/bindings*.cpp). Pointers are integers (Tensor.data_ptr()); 0 is null.

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# bindings.cpp
def instruction_set() -> str:
    """What the vectorised loops run on: portable, avx2 or avx512."""

def use_instruction_set(name: str) -> bool:
    """Choose it, for tests; False if this machine does not have it."""

# bindings_tree.cpp
def build_tree(
    log_probs: int,
    is_double: bool,
    token_ids: int,
    child_rows: int,
    rows: int,
    ranks: int,
    budget: int,
    buffer: NDArray[np.int64],
) -> int: ...
def encode_tree(
    parents: int, nodes: int, length: int, batch_offset: int, arrays: NDArray[np.int64]
) -> int: ...
def write_visibility(parents: int, nodes: int, length: int, out: int) -> None: ...
def check_topology(next_token: int, next_sibling: int, tokens: int, nodes: int) -> int: ...
def topk_log_softmax(
    logits: int,
    dtype: int,
    rows: int,
    size: int,
    k: int,
    temperature: float,
    top_log_probs: int,
    top_token_ids: int,
) -> int: ...

# bindings_sampling.cpp
def coins(seed: int, step: int, count: int, out: int) -> None: ...
def final_coin(seed: int, step: int) -> float: ...
def verify(
    logits: int,
    element: int,
    stride: int,
    size: int,
    nodes: int,
    candidates: int,
    next_token: int,
    next_sibling: int,
    temperature: float,
    top_k: int,
    top_p: float,
    coins: int,
    final_coin: float,
    threshold_single: float,
    threshold_acc: float,
) -> int | tuple[list[int], int, int, float, float, float, list[tuple[int, float, float, float, bool]]]: ...
def observe(
    logits: int,
    element: int,
    stride: int,
    size: int,
    nodes: list[int],
    children: list[list[int]],
    temperature: float,
    top_k: int,
    top_p: float,
    draft_logits: int,
    draft_element: int,
    draft_stride: int,
    draft_rows: list[int],
    draft_temperature: float,
    count: int,
) -> list[
    int | tuple[list[int], list[float], list[float], list[float], list[float], float, float | None]
]: ...

# bindings_padded.cpp
def target_only(
    predicts: int,
    accept_index: int,
    accept_token_num: int,
    candidates: int,
    retrieve_index: int,
    next_token: int,
    next_sibling: int,
    uniform_samples: int,
    uniform_samples_final: int,
    target_probs: int,
    status: int,
    slots: int,
    size: int,
    batch: int,
    nodes: int,
    path: int,
    threshold_single: float,
    threshold_acc: float,
) -> None: ...
def build_padded_trees_float(
    log_probs: int,
    token_ids: int,
    child_rows: int,
    batch: int,
    rows: int,
    ranks: int,
    budget: int,
    fields: int,
    retrieve: int,
    visible: int,
    status: int,
) -> None: ...
def build_padded_trees_double(
    log_probs: int,
    token_ids: int,
    child_rows: int,
    batch: int,
    rows: int,
    ranks: int,
    budget: int,
    fields: int,
    retrieve: int,
    visible: int,
    status: int,
) -> None: ...
def verify_batch(
    logits: int,
    element: int,
    size: int,
    row_stride: int,
    tree_stride: int,
    candidates: int,
    next_token: int,
    next_sibling: int,
    coins: int,
    final_coins: int,
    temperature: float,
    top_k: int,
    top_p: float,
    threshold_single: float,
    threshold_acc: float,
    batch: int,
    nodes: int,
    path: int,
    outcome: int,
    bonus: int,
    tried: int,
    decisions: int,
    status: int,
) -> None: ...

# bindings_cuda.cpp: None where CUDA was not built. It has the functions of bindings_padded.cpp with the
# stream as one argument more (the samplers before it: scratch memory), and these.
class _Cuda(Protocol):
    LARGEST_BUDGET: int
    def architectures(self) -> list[str]: ...
    def devices(self) -> tuple[list[str], str]:
        """(the names of the machine's devices, what is wrong in CUDA's words)."""
    def sampler_scratch_bytes(self, size: int, nodes: int) -> int: ...

cuda: _Cuda | None

# bindings_forward.cpp
class Matrix:
    """Weights in the order in which a product reads them."""

def pack(weights: int, source: int, outputs: int, inputs: int, bias: list[float]) -> Matrix:
    """source: 0 float32, 1 bfloat16, 2 Q4_0, 3 Q4_1, 8 Q8_0. bias: [outputs], or empty."""

def can_run_forward() -> bool:
    """Whether this machine has the vector instructions (AVX2 and FMA)."""

def has_amx() -> bool:
    """Whether this machine and its system have AMX tiles with bfloat16; asks the system for them."""

class Float32Forward:
    """A llama-like decoder; csrc/cpu/forward.h. add_layer takes the matrices' weights over."""

    def __init__(
        self,
        width: int,
        heads: int,
        key_heads: int,
        head_dim: int,
        gated: int,
        vocabulary: int,
        epsilon: float,
        scale: float,
    ) -> None: ...
    def add_layer(
        self,
        projected: Matrix,
        output: Matrix,
        gate_up: Matrix,
        down: Matrix,
        first_norm: list[float],
        second_norm: list[float],
        query_norm: list[float],
        key_norm: list[float],
        window: int,
    ) -> None: ...
    def finish(
        self, final_norm: list[float], head: Matrix, embedding: int, cosines: int, sines: int, angles: int
    ) -> None: ...
    def run(
        self,
        rows: int,
        length: int,
        capacity: int,
        token_ids: int,
        positions: int,
        visibility: int,
        keys: list[int],
        values: list[int],
        taps: list[int],
        tap_stride: int,
        logits: int,
        last_only: bool,
        workers: int,
    ) -> None: ...
    def head(self, states: int, rows: int, logits: int, workers: int) -> None:
        """The output head alone over final, normed states [rows, width]."""

class BFloat16Forward(Float32Forward): ...
