"""What Prometheus reads at /metrics: names and suffixes of vLLM's, under `ddtree:`.

A draft tree's tokens are its nodes, of which at most one a depth can be accepted. So accepted / draft tokens
is the node efficiency here and no acceptance rate; accepted tokens per position over drafts is.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ddtree.trace import Step, Summary

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STEP_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """One server's counters, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        label = ["model_name"]

        def counter(name: str, text: str, labels: list[str] = label) -> Counter:
            return Counter(f"ddtree:{name}", text, labels, registry=self.registry)

        self._drafts = counter("spec_decode_num_drafts", "Steps that drafted a tree.")
        self._draft_tokens = counter(
            "spec_decode_num_draft_tokens", "Nodes of draft trees, roots not counted."
        )
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens that were committed.")
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were committed, by position (depth - 1).",
            [*label, "position"],
        )
        self._generated = counter("generation_tokens", "Tokens committed, bonus tokens included.")
        self._failed = counter("failed_steps", "Steps that ended in an error.")
        self._finished = counter(
            "request_success", "Runs by the reason they ended.", [*label, "finished_reason"]
        )
        self._step_time = Histogram(
            "ddtree:step_time_seconds",
            "Wall time of a step.",
            label,
            buckets=_STEP_SECONDS,
            registry=self.registry,
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read when Prometheus asks."""
        Gauge(f"ddtree:{name}", text, registry=self.registry).set_function(read)

    def step(self, model: str, step: Step) -> None:
        if step.error is not None:
            self._failed.labels(model).inc()
        if step.timing_ms is not None:
            self._step_time.labels(model).observe(step.timing_ms.total / 1e3)
        if step.committed is None:
            return
        self._generated.labels(model).inc(len(step.committed.token_ids))
        if step.draft is None or step.tree is None or step.accept is None:
            return
        accepted = min(step.accept.accept_token_num, len(step.committed.token_ids))
        self._drafts.labels(model).inc()
        self._draft_tokens.labels(model).inc(len(step.tree.token_ids))
        self._accepted.labels(model).inc(accepted)
        for position in range(accepted):
            self._accepted_at.labels(model, str(position)).inc()

    def finished(self, model: str, summary: Summary) -> None:
        self._finished.labels(model, summary.finish_reason).inc()

    def exposition(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self.registry)
