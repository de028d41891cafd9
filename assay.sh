#!/usr/bin/env bash
# Sets up, builds and runs assay: see `./assay.sh help`.
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
preset=release-cpu
build=$root/build/$preset
log=$build/build.log
program=$build/bin/assay
first_build_minutes=5
memory_per_job_kib=1000000  # what the largest source takes to compile, and some more

say() { echo "assay.sh: $*" >&2; }

# The environment cannot run it: the exit status is that of the program itself.
refuse() {
  say "$*"
  exit 3
}

usage() {
  cat <<'TEXT'
./assay.sh verify [ARGS...]   judge an implementation: `assay verify ARGS...`; without ARGS cases/kda_dsa.json
./assay.sh test [--smoke] [CTEST ARGS...]
                              run all tests, or those that take seconds
./assay.sh bench [ARGS...]    run the benchmarks (ARGS as of a Catch2 program)
./assay.sh build              build the program and the tests
./assay.sh help               this text

Each command first installs what the build needs and is missing (Debian 12, Ubuntu 24.04) and builds what has changed.
The build's output goes to build/release-cpu/build.log. Files in ARGS are relative to the current folder.
The exit status is that of the program: 0 passed; 1 a verdict is FAIL, MISTRUSTED or ERROR; 2 bad usage or bad input;
3 the environment cannot run it.
CC and CXX choose the compiler of the first build, CMAKE_BUILD_PARALLEL_LEVEL the number of jobs.
TEXT
}

# --- what the build needs -------------------------------------------------------------------------------------------

distribution() {
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    (. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
  else
    echo unknown
  fi
}

# Prints those of the packages that are not installed.
missing_of() {
  local installed package
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -Fqx "installed $package" <<<"$installed" || echo "$package"
  done
}

# With the output in a file that is shown on failure. No stdin: nothing may wait for an answer.
apt() {
  local output status=0
  output=$(mktemp)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 "$@" \
    </dev/null >"$output" 2>&1 || status=$?
  ((status == 0)) || tail -n 20 "$output" >&2
  rm -f "$output"
  return "$status"
}

set_up() {
  # FLINT 3 holds Arb; beside FLINT 2 it is a package of its own. Without the useful ones the program builds as well.
  local needed=(g++ cmake ninja-build libgmp-dev libmpfr-dev libflint-dev libboost-dev nlohmann-json3-dev libcli11-dev
    libfmt-dev libgtest-dev libgmock-dev)
  local useful=(ccache catch2 git)
  local missing wanted tool
  case $(distribution) in
    "debian 12") needed+=(libflint-arb-dev) ;;
    "ubuntu 24.04") ;;
    *)
      for tool in cmake ninja; do
        command -v "$tool" >/dev/null || refuse "$tool is missing, and this distribution ($(distribution)) is not one" \
          "whose packages are known here (Debian 12, Ubuntu 24.04). Needed: a C++20 compiler (GCC 12 or clang 14 or" \
          "later), CMake 3.25, Ninja, and the development files of GMP, MPFR, FLINT 2.9 with Arb 2.23 or FLINT 3," \
          "Boost 1.74, nlohmann-json, CLI11, fmt and GoogleTest with GoogleMock."
      done
      # Warnings of compilers that nobody has tried here are no reason to stop.
      configure_options=(-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF)
      return
      ;;
  esac
  mapfile -t missing < <(missing_of "${needed[@]}")
  mapfile -t wanted < <(missing_of "${needed[@]}" "${useful[@]}")
  ((${#wanted[@]})) || return 0

  local command="apt-get update && apt-get install --no-install-recommends ${wanted[*]}"
  if ((EUID == 0)); then
    as_root=()
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]]; }; then
    as_root=(sudo)
  else
    ((${#missing[@]})) || return 0
    refuse "packages are missing, and only root may install them. As root: $command"
  fi
  say "installing ${wanted[*]} ..."
  [[ ${#as_root[@]} -eq 0 ]] || sudo -v || refuse "packages are missing. As root: $command"
  if ! { apt update -qq && apt install -y -qq --no-install-recommends "${wanted[@]}"; }; then
    ((${#missing[@]})) || return 0
    refuse "the packages could not be installed. As root: $command"
  fi
}

# --- the build ------------------------------------------------------------------------------------------------------

jobs() {
  local cores available
  cores=$(nproc)
  available=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || true)
  local fitting=$((${available:-$memory_per_job_kib} / memory_per_job_kib))
  ((fitting < cores)) && cores=$fitting
  echo $((cores > 1 ? cores : 1))
}

# Passes nothing on: says once that steps are run, and on a terminal how far they are.
show_progress() {
  local line announced=$1
  while IFS= read -r line; do
    [[ $line =~ ^\[([1-9][0-9]*)/([0-9]+)\] ]] || continue
    if [[ -z $announced ]]; then
      say "building ..."
      announced=yes
    fi
    [[ ! -t 2 ]] || printf '\r\033[K%s' "${line:0:${COLUMNS:-79}}" >&2
  done
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
}

# Runs a command in the project's folder; its output goes to the log.
logged() {
  (cd -- "$root" && "$@") </dev/null 2>&1 | tee -a "$log" | show_progress "$announced"
}

build_failed() {
  if grep -q '^FAILED: ' "$log"; then
    sed -n -e '/^\[[0-9]*\/[0-9]*\] /d' -e '/^FAILED: /,$p' "$log" >&2
  else
    tail -n 60 "$log" >&2
  fi
  refuse "the build failed: $log"
}

build() {
  local announced='' cached options=()
  mkdir -p -- "$build"
  if command -v flock >/dev/null; then
    exec 9>"$build/.lock"
    flock 9
  fi
  : >"$log"
  if [[ ! -x $program ]]; then
    say "building (first time: about $first_build_minutes minutes on 2 cores) ..."
    announced=yes
  fi
  cached=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
  if [[ $cached != "$root" || ! -f $build/build.ninja ]]; then
    [[ -z $cached ]] || options+=(--fresh)
    logged cmake --preset "$preset" "${options[@]}" "${configure_options[@]}" || build_failed
  fi
  logged cmake --build --preset "$preset" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(jobs)}" --target "$@" ||
    build_failed
  exec 9>&-
}

# --- the commands ---------------------------------------------------------------------------------------------------

as_root=()
configure_options=()
command=${1:-}
(($# == 0)) || shift
case $command in
  verify)
    set_up
    build assay
    if (($# == 0)); then
      set -- "$root/cases/kda_dsa.json"
      [[ $PWD -ef $root ]] && set -- cases/kda_dsa.json
    fi
    exec "$program" verify "$@"
    ;;
  test)
    options=()
    if [[ ${1:-} == --smoke ]]; then
      options+=(--label-regex smoke)
      shift
    fi
    set_up
    build all
    exec ctest --test-dir "$build" --output-on-failure -j2 "${options[@]}" "$@"
    ;;
  bench)
    set_up
    build benchmarks
    exec "$build/bin/benchmarks" "$@"
    ;;
  build)
    set_up
    build all
    ;;
  help | --help | -h)
    usage
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
