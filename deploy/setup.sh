#!/usr/bin/env bash
# Runs on the machine, as the user, any number of times: unpacks the project, installs it with uv, starts marimo as a service.
#   setup.sh [--archive FILE] [--host 127.0.0.1|0.0.0.0] [--gpu] [--root FOLDER] [--requirements FILE] [--no-start]
# --gpu: require an NVIDIA driver. --root: install there instead of in the home folder.
set -euo pipefail

ARCHIVE="" HOST=127.0.0.1 GPU="" HOME_DIR=$HOME REQUIREMENTS="" CARD="" START=1
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) GPU=1 ;;
    --no-start) START="" ;;
    --archive) ARCHIVE=$2 && shift ;;
    --host) HOST=$2 && shift ;;
    --root) HOME_DIR=$2 && shift ;;
    --requirements) REQUIREMENTS=$2 && shift ;;
    *) printf 'Expected an option of setup.sh, got %s; read its head.\n' "$1" >&2 && exit 2 ;;
  esac
  shift
done
PROJECT=$HOME_DIR/less-overhead
STATE=$HOME_DIR/.config/less-overhead
UNITS=$HOME_DIR/.config/systemd/user
VENV=$PROJECT/.venv
PORT=${MARIMO_PORT:-2718}
UV=${UV:-}

die() { printf '%s\n' "$*" >&2 && exit 1; }

# Unpack the project without overwriting notebooks and other files edited here since the last call.
unpack() {
  local fresh
  [ -n "$ARCHIVE" ] || return 0
  fresh=$(mktemp -d)
  tar -C "$fresh" -xzf "$ARCHIVE" || die "Expected an archive of the project in $ARCHIVE, could not read it; call deploy/gcp create again."
  (cd "$fresh" && find . -type f -print0 | xargs -0 sha256sum) >"$STATE/copied.new"
  : >"$STATE/edited"
  if [ -f "$STATE/copied" ]; then
    (cd "$PROJECT" && sha256sum --check --quiet "$STATE/copied" 2>/dev/null) | sed -n 's/: FAILED$//p' >"$STATE/edited" || true
  fi
  mkdir -p "$PROJECT"
  tar -C "$fresh" --exclude-from="$STATE/edited" -cf - . | tar -C "$PROJECT" -xf -
  mv "$STATE/copied.new" "$STATE/copied"
  rm -rf "$fresh"
  [ ! -s "$STATE/edited" ] || printf 'Edited here, and left as it is: %s\n' "$(tr '\n' ' ' <"$STATE/edited")"
}

# Install uv in a separate folder: from PyPI if Python can create an environment, otherwise with uv's installer.
find_uv() {
  local wanted own=$HOME_DIR/.local/share/less-overhead-uv
  UV=${UV:-$(command -v uv || true)}
  [ -n "$UV" ] && return
  wanted=$(grep '^uv==' "$PROJECT/requirements-dev.txt" 2>/dev/null) || wanted=uv
  if [ ! -x "$own/bin/uv" ]; then
    # Ubuntu's Python lacks ensurepip, and leaves a partial environment.
    { python3 -m venv "$own" && "$own/bin/pip" install --quiet --disable-pip-version-check "$wanted"; } >/dev/null 2>&1 || {
      rm -rf "$own"
      case $wanted in *==*) wanted=/${wanted#uv==} ;; *) wanted="" ;; esac
      curl -LsSf "https://astral.sh/uv$wanted/install.sh" | env UV_INSTALL_DIR="$own/bin" UV_NO_MODIFY_PATH=1 sh
    } || die "Expected uv from PyPI or astral.sh, got neither; see that this machine reaches the internet (--nat without an external address), and call deploy/gcp create again."
  fi
  UV=$own/bin/uv
}

# make_environment FOLDER: use an installed Python that all locked libraries support; otherwise uv downloads 3.12.
make_environment() {
  local python
  [ ! -x "$1/bin/python" ] || return 0
  python=$("$UV" python find --no-project '>=3.11,<3.14' 2>/dev/null) || python=3.12
  rm -rf "$1" # remains of an interrupted call
  "$UV" venv --quiet --no-project --python "$python" "$1" || die "Expected Python 3.11 to 3.13, could not get it; see that this machine reaches the internet, and repeat."
}

has_driver() { nvidia-smi -L 2>/dev/null | grep -q GPU; }

choose_requirements() {
  local waited=0
  [ -z "$REQUIREMENTS" ] || return 0
  # Just after the start, the driver may still be loading, or an image may be installing it.
  while [ -n "$GPU" ] && ! has_driver; do
    [ $waited -lt "${GPU_WAIT_S:-600}" ] || die "Expected an NVIDIA driver, none answered (nvidia-smi -L) in ${GPU_WAIT_S:-600} s; call deploy/gcp create again, or delete the machine: it costs money without its card."
    sleep 5
    waited=$((waited + 5))
  done
  if has_driver; then check_driver && REQUIREMENTS=$PROJECT/requirements-gpu.txt CARD=1; else REQUIREMENTS=$PROJECT/requirements.txt; fi
}

install() { # FOLDER REQUIREMENTS
  make_environment "$1"
  printf 'Installing %s …\n' "${2##*/}"
  "$UV" pip install --quiet --python "$1/bin/python" -r "$2" || die "Expected all of ${2##*/} to be installed, uv stopped with the message above; call deploy/gcp create again."
}

# To use a card, torch.compile needs a C compiler and Python's headers, and WebGPU needs Vulkan's loader. Without them, only
# “PyTorch, compiled” and WebGPU are missing.
install_packages() {
  { sudo -n apt-get update && sudo -n apt-get install --yes g++ python3-dev libvulkan1; } >/dev/null 2>&1 ||
    printf 'g++, python3-dev and libvulkan1 could not be installed; without them PyTorch may not compile here, and WebGPU finds no card.\n' >&2
}

# JAX and PyTorch in requirements-gpu.txt bring CUDA 13, which needs at least this driver.
LEAST_DRIVER=580
check_driver() {
  local driver
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
  case ${driver%%.*} in '' | *[!0-9]*) return 0 ;; esac # unknown version
  [ "${driver%%.*}" -ge "$LEAST_DRIVER" ] ||
    die "Expected an NVIDIA driver of version $LEAST_DRIVER or later, which CUDA 13 needs, got $driver; take an image that has one, as deploy/gcp and deploy/sky.yaml name, or install it there and repeat."
}

# Created once, so that open pages stay valid when this runs again.
make_password() {
  [ -s "$STATE/password" ] || (umask 077 && "$VENV/bin/python" -c 'import secrets; print(secrets.token_urlsafe(24))' >"$STATE/password")
  chmod 600 "$STATE/password"
}

settings() { printf 'MARIMO_HOST=%s\nMARIMO_PORT=%s\n' "$HOST" "$PORT"; }

unit_stands() { settings | cmp -s - "$STATE/marimo.env" && cmp -s "$PROJECT/deploy/marimo.service" "$UNITS/marimo.service"; }

install_unit() {
  mkdir -p "$UNITS"
  settings >"$STATE/marimo.env"
  cp "$PROJECT/deploy/marimo.service" "$UNITS/marimo.service"
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }

# Restarted only if its settings changed: a restart ends running measurements.
start() {
  local verb=$1 waited=0
  [ -n "$START" ] || return 0
  export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
  # Without lingering, the service would end with the connection.
  loginctl enable-linger 2>/dev/null || sudo loginctl enable-linger "$USER"
  systemctl --user daemon-reload
  systemctl --user enable --quiet marimo
  systemctl --user "$verb" marimo
  until answers; do
    [ $waited -lt "${START_WAIT_S:-60}" ] || die "Expected marimo to answer on port $PORT, it did not in ${START_WAIT_S:-60} s; its last words: $(journalctl --user --unit=marimo --lines=5 --output=cat 2>/dev/null | tr '\n' ' ')"
    sleep 1
    waited=$((waited + 1))
  done
}

mkdir -p "$STATE" && chmod 700 "$STATE"
unpack
[ -f "$PROJECT/mnist_training.py" ] || die "Expected the project in $PROJECT, found none; name its archive by --archive."
find_uv
choose_requirements
install "$VENV" "$REQUIREMENTS"
if [ -n "$CARD" ]; then # TensorFlow needs an older CUDA on a card, hence a separate environment
  install "$VENV-cuda12" "$PROJECT/requirements-cuda12.txt"
  install_packages
fi
make_password
if unit_stands; then VERB=start; else VERB=restart; fi
install_unit
start "$VERB"
printf 'Installed%s.\n' "${START:+, and marimo answers on port 2718}"
