"""What the columns of the relation ``cost_model`` mean."""

from __future__ import annotations

from typing import Final

from tracekit.analysis.fit import CONTEXT_TERMS, COST_MODEL_SCHEMA, PHASE_TERMS

_FIXED: Final[dict[str, str]] = {
    "cell_index": "number of the cell",
    "model": "model of the cell",
    "engine": "engine of the cell",
    "engine_version": "version of the engine",
    "topology": "disaggregated if prefill and decode are apart, else aggregated",
    "level": "cell, model or all: the coarsest pool of requests that one of its fits needed",
    "n": "requests of the cell in the fit",
    "tau": "[1] quantile that is fitted; 0.5 is the median",
    "source": "window or baseline: whose requests were fitted",
    "version": "version of the method",
    "kv_transfer_per_byte": "0/1: kv_transfer_k1 is per byte (1) or per prompt token (0)",
}

_TERMS: Final[dict[str, str]] = {
    "c0": "[ms] what the phase takes, whatever the size",
    "a0": "[ms] what the phase takes before the first prompt token",
    "a1": "[ms/token] per uncached prompt token",
    "a2": "[ms/token^2] per uncached x (cached + uncached / 2) prompt tokens: attention",
    "k0": "[ms] what a hand-off takes, whatever its size",
    "k1": "[ms/byte or ms/token] per unit of the KV cache moved, see kv_transfer_per_byte",
    "g0": "[ms/step] per decode step (a token, where accepted drafts are not known)",
    "g1": "[ms/step/token] per decode step and token of context: attention",
}

_QUALITY: Final[dict[str, str]] = {
    "s0": "[ms] ordinary variation: s0 + s1 x expected",
    "s1": "[1] ordinary variation: s0 + s1 x expected",
    "error": "[1] half of the fitted requests lie within this share of the expected time",
    "n": "requests that the phase was fitted on",
    "borrowed": "0/1: fitted on other cells too, since this one has too few requests",
}

#: The largest size that a phase was fitted on.
_REACH: Final[dict[str, str]] = {
    "prefill": "[tokens] most uncached prompt tokens of a request that the phase was fitted on",
    "queue_or_prefill": "[tokens] most uncached prompt tokens of a request that it was fitted on",
    "kv_transfer": "[bytes or tokens] largest transfer that the phase was fitted on, "
    "see kv_transfer_per_byte",
    "decode": "[steps] most decode steps of a request that the phase was fitted on",
}
_CONTEXT_REACH: Final = (
    "[tokens] longest context that a {unit} attended to, as the mean of a request it was fitted on"
)


def column_docs() -> dict[str, str]:
    """What every column means, its unit in brackets."""
    docs = dict(_FIXED)
    for phase, terms in PHASE_TERMS.items():
        docs |= {f"{phase}_{name}": _TERMS[name] for name, _ in terms}
        docs |= {f"{phase}_{name}": text for name, text in _QUALITY.items()}
        if phase in _REACH:
            docs[f"{phase}_reach"] = _REACH[phase]
        if phase in CONTEXT_TERMS:
            unit = "step" if phase == "decode" else "prompt token"
            docs[f"{phase}_context_reach"] = _CONTEXT_REACH.format(unit=unit)
    return {name: docs[name] for name in COST_MODEL_SCHEMA.names}
