#!/usr/bin/env bash
# Finds a Python that is new enough and hands over to setup.py. PYTHON=/path/to/python chooses one.
set -euo pipefail
cd "$(dirname "$0")/.."

is_usable() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

if [[ -n "${PYTHON:-}" ]]; then
  candidates=("$PYTHON")
else
  # 3.11 first: it is the version the tests run on most.
  candidates=(python3.11 python3.12 python3.13 python3 python)
fi
for candidate in "${candidates[@]}"; do
  if is_usable "$candidate"; then
    exec "$candidate" scripts/setup.py "$@"
  fi
done

{
  echo "make setup: Rubato needs Python 3.11 or newer, and none of these is: ${candidates[*]}"
  for candidate in "${candidates[@]}"; do
    version="$("$candidate" --version 2>/dev/null || true)"
    [[ -z "$version" ]] || echo "  $candidate is $version"
  done
  echo "Install Python 3.11, 3.12 or 3.13, or name one:  make setup PYTHON=/path/to/python3.12"
} >&2
exit 1
