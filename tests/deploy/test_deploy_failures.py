"""deploy/gcp with a fake gcloud: every failure, its sentence, and what is left behind."""

import os
import signal
import time

import psutil
import pytest

from tests.deploying import one_sentence

EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources available to fulfill the request."


def test_without_quota_nothing_is_made(cloud):
    cloud.set("quotas", "CPUS_ALL_REGIONS,32.0,0.0\nGPUS_ALL_REGIONS,0.0,0.0\n")
    one_sentence(cloud("create", fails=True), "GPUS_ALL_REGIONS", "0 free", "iam-admin/quotas", "free trial")
    assert not cloud.calls("instances create")


def test_an_exhausted_zone_falls_back_to_the_next(cloud):
    cloud.fail("instances create .*us-central1-a", EXHAUSTED)
    assert "Zone us-central1-a has no g2-standard-4 free." in cloud("create")
    assert cloud.rows("machines")[0].startswith("less-overhead-l4,us-central1-b,")


def test_nothing_is_left_when_all_zones_are_exhausted(cloud):
    cloud.fail("instances create", EXHAUSTED)
    cloud.fail("instances create .*", EXHAUSTED)
    said = cloud("create", "--zones", "us-central1-a,us-central1-b", fails=True)
    one_sentence(said.splitlines()[-1], "us-central1-a,us-central1-b", "Nothing was made")
    assert not cloud.rows("machines")
    assert not cloud.rows("rules")


FAMILIES = ("common-cu129", "pytorch-2-9", "ubuntu-accelerator")


@pytest.mark.parametrize(
    ("gone", "taken"),
    [
        (1, "--image-family=pytorch-2-9-cu129-ubuntu-2404-nvidia-580"),
        (2, "--image-project=ubuntu-os-accelerator-images"),
        (3, ""),
    ],
)
def test_each_missing_image_family_but_the_last_has_a_fallback(cloud, gone, taken):
    for family in FAMILIES[:gone]:
        cloud.fail(f"images .*{family}", "The resource was not found")
    said = cloud("create", fails=not taken)
    if taken:
        assert taken in cloud.calls("instances create")[0]
    else:
        one_sentence(said.splitlines()[-1], *FAMILIES, "images list")


@pytest.mark.parametrize("subcommand", ["create", "open", "record", "fetch"])
def test_a_preempted_or_missing_machine_is_reported_with_a_remedy(cloud, subcommand):
    if subcommand != "create":
        one_sentence(cloud(subcommand, "--port", "2799", fails=True), "found none", "create")
    cloud.set("machines", "less-overhead-l4,us-central1-b,TERMINATED,l4,SPOT,2026-11-21T22:00:00Z\n")
    one_sentence(cloud(subcommand, "--port", "2799", fails=True), "TERMINATED in us-central1-b", "delete")
    assert "computes nothing" in cloud("status")


@pytest.mark.parametrize(
    ("step", "how"),
    [
        ("instances create", "lost"),
        ("instances create", "offline"),
        ("firewall-rules create", "lost"),
        ("compute scp", "offline"),
        ("compute ssh .*setup.sh", "lost"),
    ],
)
def test_create_says_what_exists_after_a_lost_network_and_resumes(cloud, step, how):
    cloud.fail(step, how)
    said = cloud("create", fails=True)
    assert "Made so far: machine less-overhead-l4 in us-central1-a" in said
    assert "deletes itself when its hours are over" in said
    cloud("create")
    assert len(cloud.rows("machines")) == len(cloud.rows("rules")) == 1


def test_ctrl_c_in_the_middle_says_what_exists(cloud):
    (cloud.state / "no-driver").touch()
    process = cloud.start("create", GPU_WAIT_S="60")
    while "nvidia-smi" not in cloud.rows("remote"):
        time.sleep(0.02)
    while not any(child.name() == "sleep" for child in psutil.Process(process.pid).children(recursive=True)):
        time.sleep(0.02)  # the shell ends only if the signal also reaches a child that it waits for
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Made so far: machine less-overhead-l4 in us-central1-a" in said
    assert "delete --name less-overhead-l4 --project my-project" in said


@pytest.mark.parametrize("driver", ["535.274.02", "570.86.15", "9.1"])
def test_a_driver_too_old_for_cuda_13_is_reported_before_installing(cloud, driver):
    cloud.set("driver", f"{driver}\n")
    said = cloud("create", fails=True)
    why = f"Expected an NVIDIA driver of version 580 or later, which CUDA 13 needs, got {driver}; take an image"
    assert why in said
    assert not [line for line in cloud.rows("remote") if "pip install" in line]


@pytest.mark.slow
def test_a_failed_recording_is_distinguished_from_a_lost_connection(made):
    (made.state / "broken").touch()
    assert "it resumes where it stopped" in made("record", fails=True)
    made.fail("machine.sh record", "offline")
    assert "the recording goes on there" in made("record", fails=True)


@pytest.mark.slow
def test_a_recording_out_of_time_is_fetched_and_reported_as_incomplete(made):
    (made.state / "too-long").touch()
    said = made("record", fails=True)
    assert (made.clone / "fetched/less-overhead-l4/recorded/less-overhead-l4.json").exists()
    one_sentence(said.splitlines()[-1], "the whole battery", "was fetched", "Repeat")
    (made.state / "too-long").unlink()
    assert "all measured" in made("record")


@pytest.mark.parametrize(
    ("quotas", "metric"),
    [
        ("NVIDIA_L4_GPUS,0.0,0.0\nPREEMPTIBLE_NVIDIA_L4_GPUS,1.0,0.0\n", ""),
        ("NVIDIA_L4_GPUS,1.0,0.0\nPREEMPTIBLE_NVIDIA_L4_GPUS,0.0,0.0\n", ""),
        ("NVIDIA_L4_GPUS,1.0,0.0\n", ""),
        ("NVIDIA_L4_GPUS,1.0,0.0\nPREEMPTIBLE_NVIDIA_L4_GPUS,1.0,1.0\n", "PREEMPTIBLE_NVIDIA_L4_GPUS"),
        ("NVIDIA_L4_GPUS,1.0,1.0\nPREEMPTIBLE_NVIDIA_L4_GPUS,0.0,0.0\n", "NVIDIA_L4_GPUS"),
    ],
)
def test_a_spot_machine_uses_the_spot_quota_only_if_granted(cloud, quotas, metric):
    cloud.set("quotas-us-central1", quotas)
    said = cloud("check", "--spot", "--zones", "us-central1-a")
    assert ("Region us-central1 has quota" in said) == (not metric)
    assert not metric or f"({metric}: 1 needed, 0 free)" in said


def test_delete_names_what_it_cannot_remove_and_deletes_the_rest(made):
    made.fail("firewall-rules delete", "Required permission")
    said = made("delete", fails=True)
    assert "Could not remove less-overhead-l4-iap" in said
    assert "Expected nothing of less-overhead-l4 to be left, found: less-overhead-l4-iap" in said
    assert not made.rows("machines")


@pytest.mark.parametrize("step", ["instances list", "firewall-rules list", "disks list"])
def test_delete_does_not_claim_success_when_listing_fails(made, step):
    made.fail(step, "offline")
    assert "Nothing is left" not in made("delete", fails=True)
    assert "Nothing is left" in made("delete")


def test_another_kind_under_the_same_name_is_refused(cloud):
    cloud("create", "--name", "mine")
    one_sentence(cloud("create", "--name", "mine", "--kind", "cpu", fails=True), "kind cpu", "kind l4", "--name")
