#!/usr/bin/env bash
# Run pytest, and fail where it ended before its tests did: code under test that leaves by os._exit(0) would look green.
set -euo pipefail
report=$(mktemp)
trap 'rm -f "$report"' EXIT
.venv/bin/python -m pytest "$@" --junitxml="$report"
if [[ ! -s "$report" ]]; then
  echo "pytest ended before its tests did: something in its process called os._exit" >&2
  exit 1
fi
