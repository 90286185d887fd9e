"""Which stored measurements are still valid: those of this machine, code and versions."""

from collections.abc import Mapping, Sequence

from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import Runtime, versions
from lib.model.hardware.machine import machine_id
from lib.sweeps.storage.records import Kind, Record


def current(records: Sequence[Record], kind: Kind, subject: Mapping[str, object], runtime: Runtime) -> list[Record]:
    """Records of a kind and subject with this machine, code and the runtime's versions, the oldest first."""
    here = (machine_id(), source_digest(), versions(runtime))
    found = [
        record
        for record in records
        if record.kind == kind
        and (record.machine, record.sources, record.versions) == here
        and record.is_about(subject)
    ]
    return sorted(found, key=lambda record: record.measured_at)
