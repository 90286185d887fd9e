# Functions of deploy/gcp: running gcloud, and describing the kinds of machine. Sourced, never run.
# shellcheck shell=bash
# Compatible with bash 3.2, macOS's version (not tried there): no mapfile, no associative arrays.
# shellcheck disable=SC2034,SC2153,SC2154  # the options are set in deploy/gcp

LABEL=less_overhead # on every machine, so that listing and deleting never touch other machines
MADE_BY=deploy-gcp
IAP_RANGE=35.235.240.0/20 # source addresses of Google's Identity-Aware Proxy
REMOTE_PORT=2718

# --- Kinds. A family is "name project"; the first that exists is used. Zones without the machine type are skipped.
describe_kind() {
  case $KIND in
    l4)
      MACHINE_TYPE=g2-standard-4
      ZONES=${ZONES:-us-central1-a,us-central1-b,us-central1-c,us-east1-b,us-west1-a}
      IMAGES="common-cu129-ubuntu-2404-nvidia-580 deeplearning-platform-release
pytorch-2-9-cu129-ubuntu-2404-nvidia-580 deeplearning-platform-release
ubuntu-accelerator-2404-amd64-with-nvidia-580 ubuntu-os-accelerator-images"
      QUOTA=NVIDIA_L4_GPUS SPOT_QUOTA=PREEMPTIBLE_NVIDIA_L4_GPUS QUOTA_NEEDED=1
      METADATA=enable-oslogin=TRUE,install-nvidia-driver=True # the second, for images that install the driver at the first start
      # A machine with a card cannot migrate to another host. Secure boot is optional, because it rejects drivers with an
      # unknown signature.
      KIND_FLAGS=("--accelerator=type=nvidia-l4,count=1" --maintenance-policy=TERMINATE --boot-disk-size=100GB)
      ;;
    cpu)
      MACHINE_TYPE=c3-highcpu-22
      ZONES=${ZONES:-us-central1-a,us-central1-b,us-central1-c,us-east1-b,us-west1-a}
      IMAGES="ubuntu-2404-lts-amd64 ubuntu-os-cloud
debian-12 debian-cloud"
      QUOTA=C3_CPUS SPOT_QUOTA=PREEMPTIBLE_CPUS QUOTA_NEEDED=22
      METADATA=enable-oslogin=TRUE
      KIND_FLAGS=(--boot-disk-size=30GB) SECURE_BOOT=1
      ;;
  esac
}

# Filters for this script's resources. Rules and routers cannot have labels, so their description counts. `status` alone shows all.
describe_ours() { # SUBCOMMAND
  local described="description=$MADE_BY"
  OUR_MACHINES="labels.$LABEL:*" OUR_DISKS="name~^less-overhead-" OUR_RULES=$described OUR_ROUTERS=$described
  [ "$1" != status ] || [ -n "$NAMED" ] || return 0
  OUR_MACHINES="name=($NAME) AND $OUR_MACHINES" OUR_DISKS="name=($NAME)"
  OUR_RULES="name=($NAME-iap $NAME-direct) AND $described" OUR_ROUTERS="name=($NAME-router) AND $described"
}

# --- Output. A dry run prints only commands, and notes between them.
say() { [ -n "$DRY" ] || printf '%s\n' "$*"; }
note() { [ -z "$DRY" ] || printf '# %s\n' "$*" >&3; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Print gcloud's last error as one line.
reason() {
  local text
  text=$(grep -v '^WARNING' "$WORK/errors" 2>/dev/null | tr -s '[:space:]' ' ' | cut -c1-300) || true
  text=${text# }
  text=${text% }
  printf '%s' "${text:-nothing}"
}

# trouble EXPECTED REMEDY: exit with one sentence that includes gcloud's error.
trouble() { die "Expected $1, but gcloud said: $(reason); $2."; }

# --- Running. Print a command as a user would type it, on one line.
quoted() {
  local word line=""
  for word in "$@"; do
    case $word in
      "" | *[!A-Za-z0-9_./:=,@%+^-]*) word="'$(printf '%s' "$word" | sed "s/'/'\\\\''/g")'" ;;
    esac
    line="$line${line:+ }$word"
  done
  printf '%s\n' "$line"
}

# Run a command and show its output; in a dry run, print the command.
run() {
  if [ -n "$DRY" ]; then quoted "$@" >&3; else "$@"; fi
}

# The same without output: errors are kept for the message about a failure.
quiet() {
  if [ -n "$DRY" ]; then quoted "$@" >&3; else "$@" >/dev/null 2>"$WORK/errors"; fi
}

# ask STAND-IN COMMAND…: print the command's output; in a dry run, print the command and return the stand-in.
ask() {
  local stand_in="$1"
  shift
  if [ -n "$DRY" ]; then
    quoted "$@" >&3
    printf '%s\n' "$stand_in"
  else
    "$@" 2>"$WORK/errors"
  fi
}

# --- Checks before any request.
preflight() {
  local account
  [ -n "$DRY" ] || command -v gcloud >/dev/null ||
    die "Expected the command gcloud, found none on PATH; install it (https://cloud.google.com/sdk/docs/install) and repeat."
  account=$(ask you@example.com gcloud auth list --filter=status:ACTIVE '--format=value(account)') ||
    trouble "the accounts of gcloud" "run: gcloud auth login"
  [ -n "$account" ] || die "Expected to be logged in to Google Cloud, got no active account; run: gcloud auth login"
  if [ -z "$PROJECT" ]; then
    PROJECT=$(ask PROJECT gcloud config get-value project) || PROJECT=""
    [ "$PROJECT" != "(unset)" ] && [ -n "$PROJECT" ] ||
      die "Expected a project, got none; name one by --project ID, or run: gcloud config set project ID"
  fi
}

# --- The machine: MACHINE_ZONE, MACHINE_STATUS, MACHINE_KIND; all empty if there is none.
find_machine() {
  local found
  found=$(ask "$1" gcloud compute instances list --project="$PROJECT" "--filter=$OUR_MACHINES" \
    "--format=csv[no-heading](zone.basename(),status,labels.$LABEL)") || trouble "the list of machines in project $PROJECT" "repeat when it answers"
  IFS=, read -r MACHINE_ZONE MACHINE_STATUS MACHINE_KIND <<<"$found" || true
}

machine_runs() { case $MACHINE_STATUS in PROVISIONING | STAGING | RUNNING) ;; *) return 1 ;; esac; }

die_of_stopped() {
  die "Expected machine $NAME to run, but it is $MACHINE_STATUS in $MACHINE_ZONE (stopped, or taken back by Google); run $SELF delete --name $NAME, then $SELF create --kind $KIND --name $NAME."
}

require_machine() {
  preflight
  find_machine "${ZONES%%,*},RUNNING,$KIND"
  [ -n "$MACHINE_ZONE" ] ||
    die "Expected a machine named $NAME in project $PROJECT, found none (never made, deleted at its time, or a spot machine taken back); make one with: $SELF create --kind $KIND --name $NAME"
  machine_runs || die_of_stopped
}

# SSH always uses the proxy, with or without an external address, so that port 22 is open to one range only.
ssh_flags() { printf '%s\n' --project="$PROJECT" --zone="$MACHINE_ZONE" --tunnel-through-iap --quiet; }

# on_machine HOW COMMAND: HOW is run, quiet, or ask with its stand-in.
on_machine() {
  local command="$2"
  # shellcheck disable=SC2046,SC2086  # one word a line, none with a space
  $1 gcloud compute ssh "$NAME" $(ssh_flags) "--command=$command"
}

# --- A machine's resources, found by name.
list_rules() {
  ask "$1" gcloud compute firewall-rules list --project="$PROJECT" "--filter=$OUR_RULES" '--format=value(name)'
}

list_routers() {
  ask "$1" gcloud compute routers list --project="$PROJECT" "--filter=$OUR_ROUTERS" '--format=csv[no-heading](name,region.basename())'
}

list_machines() {
  ask "$1" gcloud compute instances list --project="$PROJECT" "--filter=$OUR_MACHINES" '--format=csv[no-heading](name,zone.basename())'
}

list_disks() {
  ask "" gcloud compute disks list --project="$PROJECT" "--filter=$OUR_DISKS" '--format=csv[no-heading](name,zone.basename())'
}

# Copy without overwriting: if the target exists with other content, the copy gets a number.
keep_copy() {
  local from="$1" to="$2" n=2 stem ending
  stem=$to ending=""
  case ${to##*/} in *.*) stem=${to%.*} ending=.${to##*.} ;; esac
  while [ -e "$to" ] && ! cmp -s "$from" "$to"; do
    to="$stem.$n$ending"
    n=$((n + 1))
  done
  mkdir -p "$(dirname "$to")"
  [ -e "$to" ] || cp "$from" "$to"
  printf '  %s\n' "${to#"$ROOT"/}"
}

# Print a machine's price, from deploy/cost.py; print nothing without python3 here.
price() { [ -n "$DRY" ] || python3 -S "$HERE/cost.py" price "$KIND" ${SPOT:+--spot} 2>/dev/null || true; }
