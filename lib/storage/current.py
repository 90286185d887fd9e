"""Which cached measurements are still valid: those of this machine, this code and these versions."""

from collections.abc import Mapping, Sequence

from lib.backends.fingerprint import source_digest
from lib.backends.registry import Runtime, versions
from lib.hardware.machine import machine_id
from lib.storage.records import Kind, Record


def current(records: Sequence[Record], kind: Kind, subject: Mapping[str, object], runtime: Runtime) -> list[Record]:
    """Records of a kind that are valid here, the oldest first: of this machine, code and versions of the runtime.

    Args:
        records: In any order.
        kind: What was measured.
        subject: What a record's subject must agree with; a record may say more.
        runtime: Whose versions count.
    """
    here = (machine_id(), source_digest(), versions(runtime))
    found = [
        record
        for record in records
        if record.kind == kind
        and (record.machine, record.sources, record.versions) == here
        and record.is_about(subject)
    ]
    return sorted(found, key=lambda record: record.measured_at)
