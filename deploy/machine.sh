#!/usr/bin/env bash
# Called by deploy/gcp on the machine, in the project that setup.sh installed: password | record NAME | bundle.
set -euo pipefail

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STATE=${STATE:-$HOME/.config/less-overhead}
PYTHON=$PROJECT/.venv/bin/python
cd "$PROJECT"
unset LD_LIBRARY_PATH # an image may set it for its own CUDA

password() { cat "$STATE/password"; }

# Whether a recording runs: it writes its exit code last; until then, the process must exist and be lib.cli.record.
recording() {
  [ -f "$STATE/record.pid" ] && [ ! -f "$STATE/record.code" ] && grep -qs lib.cli.record "/proc/$(cat "$STATE/record.pid")/cmdline"
}

# Record in a separate session, which outlives the connection; a second call follows the running one.
# Exit code 10: the battery failed; 11: it is incomplete (status 3 of lib.cli.record).
record() {
  local out="recorded/$1.json"
  if recording; then
    printf 'Following the recording that runs already.\n'
  else
    mkdir -p recorded
    rm -f "$STATE/record.code"
    : >"$STATE/record.log" # tail below may start before the recording opens it
    # shellcheck disable=SC2016  # expanded by the inner shell
    setsid nohup bash -c 'code=0; "$1" -u -m lib.cli.record "$2" || code=$?; echo "$code" >"$3.new" && mv "$3.new" "$3"' \
      lib.cli.record "$PYTHON" "$out" "$STATE/record.code" >"$STATE/record.log" 2>&1 </dev/null &
    echo $! >"$STATE/record.pid"
  fi
  tail -n +1 -s 0.2 --pid="$(cat "$STATE/record.pid")" -f "$STATE/record.log"
  case $(cat "$STATE/record.code" 2>/dev/null) in
    0) ;;
    3) exit 11 ;;
    *) exit 10 ;;
  esac
}

# Print files edited here, and notebooks created here.
changed() {
  [ ! -f "$STATE/copied" ] || { sha256sum --check --quiet "$STATE/copied" 2>/dev/null || true; } | sed -n 's/: FAILED$//p'
  find . -maxdepth 2 \( -path './notebooks/*.py' -o -path './*.py' -not -path './*/*' \) | while IFS= read -r file; do
    grep -qs "  $file\$" "$STATE/copied" || printf '%s\n' "$file"
  done
}

# Make one archive of recordings, all stored results, and changed notebooks.
bundle() {
  local stage file
  stage=$(mktemp -d)
  find recorded -maxdepth 1 -name '*.json' -exec cp --parents -t "$stage" {} + 2>/dev/null || true
  "$PYTHON" -m lib.cli.store export "$stage/results.json" || printf 'The store could not be exported; the rest comes.\n' >&2
  changed | sort -u | while IFS= read -r file; do
    [ ! -f "$file" ] || cp --parents -t "$stage" "$file"
  done
  tar -C "$stage" -czf "$STATE/bundle.tar.gz" .
  rm -rf "$stage"
}

case ${1:-} in
  password | bundle) "$1" ;;
  record) record "${2:?a name for the recording}" ;;
  *) printf 'Expected password, record NAME or bundle, got %s.\n' "${1:-nothing}" >&2 && exit 2 ;;
esac
