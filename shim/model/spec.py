"""What the shim must know of a container's OCI spec, and nothing more.

A spec that cannot be read gives the cautious facts: then a shared pid namespace is assumed, as the reference shim does
(protocol.md 3.7), and the runtime, which reads the same file, says what is wrong with it.
"""

from __future__ import annotations

import json

import attrs


@attrs.frozen
class SpecFacts:
    """The facts of one container.

    `own_pid_namespace`: the end of init ends every other process of the container, so nobody else has to.
    """

    own_pid_namespace: bool = False


def spec_facts(config: bytes) -> SpecFacts:
    """The facts in the bytes of a `config.json`."""
    try:
        spec = json.loads(config)
        namespaces = spec["linux"]["namespaces"]
        own = any(entry.get("type") == "pid" and not entry.get("path") for entry in namespaces)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return SpecFacts()
    return SpecFacts(own_pid_namespace=own)
