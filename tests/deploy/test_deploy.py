"""deploy/gcp with a fake gcloud: every subcommand, run once and twice."""

import os
import re
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest


def test_create_makes_a_machine_that_deletes_itself_and_runs_marimo(cloud):
    said = cloud("create")
    (made,) = cloud.calls("instances create")
    for flag in (
        "--machine-type=g2-standard-4",
        "--instance-termination-action=DELETE",
        "--no-service-account --no-scopes",
        "--image-family=common-cu129-ubuntu-2404-nvidia-580",
        "--metadata=enable-oslogin=TRUE,install-nvidia-driver=True",
        "--maintenance-policy=TERMINATE",
    ):
        assert flag in made
    assert cloud.rows("rules") == ["less-overhead-l4-iap,35.235.240.0/20,tcp:22"]
    assert "systemctl --user restart marimo" in cloud.rows("remote")
    assert [words.split("/less-overhead/")[1:] for words in cloud.rows("remote") if "uv pip install" in words] == [
        [".venv/bin/python -r " + str(cloud.home), "requirements-gpu.txt"],
        [".venv-cuda12/bin/python -r " + str(cloud.home), "requirements-cuda12.txt"],
    ]
    assert "$0.71 per hour" in said
    ends = ending(made)
    assert f"deletes itself in 2 h, at {ends:%Y-%m-%dT%H:%M:%SZ}" in said
    assert timedelta(hours=1.9) < ends - datetime.now(UTC) <= timedelta(hours=2)


def ending(call: str) -> datetime:
    """Return when the machine of this call deletes itself: an absolute time, which restarts do not extend."""
    found = re.search(r"--termination-time=(\S+)", call)
    assert found
    assert "--max-run-duration" not in call
    return datetime.fromisoformat(found[1])


def test_resources_use_the_given_network_and_secure_boot(cloud):
    assert "Region us-central1 has quota for a g2-standard-4" in cloud("check")
    assert not cloud.calls("create"), "a check makes nothing"
    cloud("create", "--nat", "--network", "mine", "--subnet", "my-part", "--secure-boot")
    for what in ("instances create", "firewall-rules create", "routers create"):
        (made,) = cloud.calls(what)
        assert "--network=mine" in made
    assert "--subnet=my-part" in cloud.calls("instances create")[0]
    assert "--shielded-secure-boot" in cloud.calls("instances create")[0]


def test_create_twice_reuses_the_machine(cloud):
    cloud("create", "--kind", "cpu")
    secret = cloud.home / ".config/less-overhead/password"
    before = secret.read_text()
    assert "is there already, in us-central1-a" in cloud("create", "--kind", "cpu")
    assert len(cloud.calls("instances create")) == 1
    assert len(cloud.calls("firewall-rules create")) == 1
    assert secret.read_text() == before
    assert secret.stat().st_mode & 0o777 == 0o600
    restarts = [line for line in cloud.rows("remote") if line.endswith("restart marimo")]
    assert len(restarts) == 1, "a second restart would end what is being measured"


def test_a_cpu_machine_takes_ubuntu_and_spot_is_an_option(cloud):
    (cloud.state / "no-driver").touch()
    cloud("create", "--kind", "cpu", "--spot", "--hours", "0.5", "--name", "mine")
    (made,) = cloud.calls("instances create mine")
    for flag in ("c3-highcpu-22", "ubuntu-2404-lts-amd64", "--provisioning-model=SPOT", "--no-service-account"):
        assert flag in made
    assert ending(made) - datetime.now(UTC) <= timedelta(hours=0.5)
    assert "nvidia" not in made
    assert not [line for line in cloud.rows("remote") if "cuda12" in line or "apt-get" in line]


def test_the_working_tree_is_copied_without_ignored_files(cloud):
    (cloud.clone / "uncommitted.py").write_text("new = 1\n")
    (cloud.clone / "notebooks" / "claims.py").unlink()
    (cloud.clone / "__pycache__").mkdir()
    (cloud.clone / "__pycache__" / "ignored.pyc").touch()
    cloud("create")
    there = cloud.home / "less-overhead"
    assert (there / "uncommitted.py").exists()
    assert not (there / "notebooks/claims.py").exists()
    assert not (there / "__pycache__").exists()


@pytest.mark.slow
def test_a_notebook_edited_on_the_machine_survives_create_and_is_fetched(made):
    notebook = made.home / "less-overhead/notebooks/claims.py"
    notebook.write_text("# edited there\n")
    (notebook.parent / "mine.py").write_text("# made there\n")
    (made.clone / "notebooks/claims.py").write_text("# edited here\n")
    assert "left as it is: ./notebooks/claims.py" in made("create")
    assert notebook.read_text() == "# edited there\n"
    made("fetch")
    fetched = made.clone / "fetched/less-overhead-l4"
    files = {str(file.relative_to(fetched)) for file in fetched.rglob("*") if file.is_file()}
    assert files == {"notebooks/claims.py", "notebooks/mine.py", "recorded/devices.json", "results.json"}


@pytest.mark.slow
def test_without_an_address_cloud_nat_is_made_once_and_deleted(cloud):
    cloud("create", "--nat")
    cloud("create", "--nat")
    assert "--no-address" in cloud.calls("instances create")[0]
    assert cloud.rows("routers") == ["less-overhead-l4-router,us-central1"]
    assert cloud.rows("nats") == ["less-overhead-l4-nat"]
    cloud("delete")
    assert not cloud.rows("routers")


@pytest.mark.slow
def test_direct_access_from_one_address_is_granted_and_revoked(cloud):
    said = cloud("create", "--expose-to", "8.8.4.4/32")
    assert "less-overhead-l4-direct,8.8.4.4/32,tcp:2718" in cloud.rows("rules")
    assert "http://198.51.100.9:2718/?access_token=secret-" in said
    settings = cloud.home / ".config/less-overhead/marimo.env"
    assert "MARIMO_HOST=0.0.0.0" in settings.read_text()
    cloud("create")
    assert cloud.rows("rules") == ["less-overhead-l4-iap,35.235.240.0/20,tcp:22"]
    assert "MARIMO_HOST=127.0.0.1" in settings.read_text()


def test_open_prints_the_address_and_tunnels_through_the_proxy(made):
    secret = (made.home / ".config/less-overhead/password").read_text().strip()
    for _ in range(2):
        assert f"http://localhost:2799/?access_token={secret}" in made("open", "--port", "2799")
    tunnel = made.calls(" -N -L 2799:localhost:2718")[0]
    assert "--tunnel-through-iap" in tunnel


@pytest.mark.slow
def test_record_fetches_its_results_and_a_fetch_overwrites_nothing(made):
    assert "all measured" in made("record")
    recorded = made.clone / "fetched/less-overhead-l4/recorded/less-overhead-l4.json"
    assert recorded.exists()
    made("record")
    recorded.write_text("edited here")
    made("fetch")
    made("fetch")
    assert recorded.read_text() == "edited here"
    files = {file.name for file in recorded.parent.iterdir()}
    assert files == {"devices.json", "less-overhead-l4.2.json", "less-overhead-l4.json"}


@pytest.mark.slow
def test_a_recording_survives_a_lost_connection_and_is_not_restarted(made):
    made.set("slow", "")
    first = made.start("record")
    while not made.rows("recordings"):
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = made.start("record")
    assert second.stdout is not None
    while "Following" not in second.stdout.readline():
        assert second.poll() is None
    (made.state / "slow").unlink()
    said, _ = second.communicate(timeout=30)
    assert "all measured" in said
    assert len(made.rows("recordings")) == 1


@pytest.mark.slow
def test_status_shows_start_end_and_cost(cloud):
    assert "Nothing of deploy/gcp runs" in cloud("status")
    cloud("create", "--kind", "cpu")
    for _ in range(2):
        said = cloud("status")
        assert re.search(r"less-overhead-cpu in us-central1-a is RUNNING since .* \(30 min\)", said)
        assert re.search(r"\(in (2 h 0|1 h 59) min\)", said)
        assert "So far about $0.47 ($0.936 per hour, on demand" in said
        assert "less-overhead-cpu-iap" in said


def test_delete_removes_everything_confirms_it_and_can_be_repeated(cloud):
    cloud("create", "--expose-to", "8.8.8.8", "--kind", "cpu")
    for _ in range(2):
        assert "Nothing is left: no machine, disk, firewall rule or router" in cloud("delete", "--kind", "cpu")
    assert not any(cloud.rows(kind) for kind in ("machines", "disks", "rules", "routers"))


def test_delete_names_machines_that_it_leaves(made):
    said = made("delete", "--kind", "cpu")
    assert "no machine, disk, firewall rule or router of less-overhead-cpu" in said
    assert "But under other names there still is: less-overhead-l4,us-central1-a" in said
    assert "under other names" not in made("delete")
