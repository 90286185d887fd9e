"""Which cached measurements are still valid: those of this machine, this code and these versions."""

from collections.abc import Mapping, Sequence

from lib.backends.fingerprint import source_digest
from lib.backends.registry import versions
from lib.hardware.machine import machine_id
from lib.storage.records import Kind, Record


def current(records: Sequence[Record], kind: Kind, subject: Mapping[str, object], backend: str) -> list[Record]:
    """Those of a kind whose subject agrees in all that `subject` names, the oldest first."""
    here = (machine_id(), source_digest(), versions(backend))
    found = [
        record
        for record in records
        if record.kind == kind
        and (record.machine, record.sources, record.versions) == here
        and all(record.subject.get(name) == value for name, value in subject.items())
    ]
    return sorted(found, key=lambda record: record.measured_at)
