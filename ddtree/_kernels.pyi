# The C++ module (csrc/bindings*.cpp). Pointers are integers (Tensor.data_ptr()); 0 is null.

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
    buffer: int,
) -> int: ...
def encode_tree(parents: int, nodes: int, length: int, batch_offset: int, arrays: int) -> int: ...
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
