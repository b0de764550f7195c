# Building, testing and linting, sourced by ./dev after setup.sh. Uses TORCH, TORCH_DIR, PRESET, JOBS; sets BUILD.

# The kernel gives programs for aarch64 to the emulator, so they can start one another: for the processes of this command alone,
# in a user namespace, or for the whole machine where the administrator wants that (Debian: qemu-user-binfmt).
emulated() {
  export QEMU_LD_PREFIX=$PWD/.deps/aarch64
  # KiB. Arenas then reserve 1 GiB of address space, not 32: the emulator keeps a description of each page.
  ulimit -S -f $((1 << 20))
  if [[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]]; then
    "$@"
    return
  fi
  # 64 bit, ARM (0xb7), a program or a shared object (2 or 3). P: argv[0] as given. F: also where the emulator is not to be seen.
  local header=':aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  header+=':\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:PF'
  # shellcheck disable=SC2016
  unshare --user --map-root-user --mount bash -c 'mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
    printf %s "$1" >/proc/sys/fs/binfmt_misc/register ||
    { echo "./dev: this kernel runs no programs for aarch64 in a user namespace (Linux 6.7 does). As root: apt-get install qemu-user-binfmt" >&2; exit 2; }
    exec "${@:2}"' emulated "$header" "$@"
}

# gcc 12's TSan cannot place its shadow memory if the kernel randomises many address bits, so turn randomisation off.
as_preset_needs() {
  if [[ $PRESET == aarch64 ]]; then
    emulated "$@"
  elif [[ $PRESET == tsan ]] && setarch -R true 2>/dev/null; then
    setarch -R "$@"
  else
    "$@"
  fi
}

# LibTorch is not instrumented: memory that it keeps until the process ends is not a leak, and TSan does not see the
# atomics by which it hands memory from thread to thread. Nothing here hides a race of our own code.
sanitizer_environment() {
  # gcc 12's library guesses where glibc has put the thread-local memory of a library that was loaded late (UCX), and
  # its search for leaks crashes where the guess is wrong: so it must not look there.
  export ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1:strict_init_order=1:intercept_tls_get_addr=0
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  export LSAN_OPTIONS=suppressions=$PWD/tools/sanitizers/lsan.supp:print_suppressions=0
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1
  # The sanitizer's dlopen() does not know where the program looks for its backends.
  export LD_LIBRARY_PATH=$BUILD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export UCX_MEM_EVENTS=n # else UCX patches the allocator that the sanitizers have replaced
}

# configure PRESET BUILD [OPTION...]
configure() {
  mkdir -p build
  as_preset_needs cmake --preset "$1" -B "$2" "-DLOCKSTEP_TORCH_DIR=$TORCH_DIR" "${@:3}" >"$2.configure.log" 2>&1 || {
    cat "$2.configure.log" >&2
    fail "CMake could not configure $2 (its reason is above)"
  }
}

# configure_and_build PRESET [--python PATH] [TARGET...]: with --python in a build folder of that Python's own
configure_and_build() {
  BUILD=$PWD/build/$1-torch$TORCH
  [[ $1 != aarch64 ]] || BUILD=$PWD/build/aarch64
  local of_python=()
  if [[ ${2-} == --python ]]; then
    BUILD+=-$("$3" -c 'import sysconfig; print(sysconfig.get_config_var("SOABI"))')
    of_python=("-DPython3_EXECUTABLE=$3")
    set -- "$1" "${@:4}"
  fi
  [[ $1 == asan-ubsan || $1 == tsan || $1 == fuzz ]] && sanitizer_environment
  took "set-up"
  say "building $BUILD"
  local targets=("${@:2}")
  # A component and those that it needs; in this build folder, so that nothing is compiled again for all three.
  local components='core;vision;studio'
  [[ -z ${COMPONENT-} ]] || components=${components%%"$COMPONENT"*}$COMPONENT
  configure "$1" "$BUILD" "-DLOCKSTEP_COMPONENTS=$components" ${of_python[@]+"${of_python[@]}"}
  # At the end of their build the test programs run to list their tests, so they need the preset's settings too.
  as_preset_needs cmake --build "$BUILD" -j "$JOBS" --target "${targets[@]:-all}" >&2 || fail "the build of $BUILD failed (the first error is above)"
  took "build"
}

# slowest_suites LOG: the ten suites that took longest, from CTest's LastTest.log: seconds, and seconds of processor time
# (of suites whose tests are forks, with their Python scripts).
slowest_suites() {
  awk '/^[0-9]+\/[0-9]+ Test: / {suite = $3; processor = 0; forked = 0}
    match($0, /^\[ .* \(processor [0-9]+ ms, [0-9]+ ms\)$/) {processor += $(NF - 3); forked = forked || !/^\[  SCRIPT/}
    /^Test time = / {printf "%7.0f s %9s  %s\n", $4, forked ? sprintf("%.0f s", processor / 1000) : "-", suite}' "$1" |
    sort -rn | sed -n 1,10p
}

# count_tests LOG: "PASSED FAILED" from CTest's LastTest.log, the tests of suites one by one. What names no test, such as a
# script or a program that crashed, is one test.
count_tests() {
  awk '/^[0-9]+\/[0-9]+ Test: / {ok = 0; delete bad}
    /^\[       OK \] / {ok++}
    /^\[  FAILED  \] .* ms\)$/ {sub(",$", "", $4); bad[$4]}
    /^Test (Passed|Failed)|^Test timed out|^Unable to find/ {
      failed = $0 == "Test Passed." ? 0 : length(bad) > 0 ? length(bad) : 1 # a test may run others that fail as they must
      all_failed += failed
      all_passed += ok + failed > 0 ? ok : 1
    }
    END {print all_passed + 0, all_failed + 0}' "$1"
}

# run_tests LABEL FILTER LAYER: each may be empty. One suite more than there are cores runs at once, or twice as many of those that
# mostly wait for deadlines: a suite counts as two of CTest's processors, one that waits as one (tests/support/main).
# The last line of the output is "N passed, N failed".
run_tests() {
  local tree=$BUILD${COMPONENT:+/$COMPONENT/tests}
  local arguments=(--test-dir "$tree" --output-on-failure --no-tests=error --timeout 300 -j $((2 * ($(nproc) + 1)))) log=$BUILD/test.log status=0
  arguments+=(--test-output-size-passed 1000000 --test-output-size-failed 10000000) # for count_tests
  [[ -n $1 ]] && arguments+=(-L "^$1\$")
  [[ -n $2 ]] && arguments+=(-R "$2")
  [[ -n $3 ]] && arguments+=(-L "^layer-$3\$")
  # The tests for GPUs have a command of their own. Python's torch cannot be loaded into an instrumented process.
  local left_out='^gpu$'
  [[ $PRESET == asan-ubsan || $PRESET == tsan ]] && left_out='^(gpu|parity)$'
  [[ $1 == gpu ]] || arguments+=(-LE "$left_out")
  # Else LibTorch's threads spin while they wait for one another. With more threads than cores a thread spins until its turn of the
  # core is over, which costs ten times the processor time of what is computed.
  export OMP_WAIT_POLICY=passive
  as_preset_needs ctest "${arguments[@]}" 2>&1 | tee "$log" || status=$?
  grep -qE '^[0-9]+% tests passed' "$log" || fail "no test ran: nothing matches label '$1', filter '$2' and layer '$3'"
  local passed failed
  read -r passed failed < <(count_tests "$tree/Testing/Temporary/LastTest.log")
  ((failed == 0)) || sed -n '/^The following tests FAILED/,/^Errors while/p' "$log"
  took "tests"
  say "the slowest suites: seconds, seconds of processor time"
  slowest_suites "$tree/Testing/Temporary/LastTest.log" >&2
  printf '\n%s, torch %s, preset %s\n%s in all:%s\n%d passed, %d failed\n' "$(uname -m)" "$TORCH" "$PRESET" \
    "$(duration $SECONDS)" "$(printf ' %s,' "${TOOK[@]}" | sed 's/,$//')" "$passed" "$failed"
  return "$status"
}

sources() { git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r f; do [[ -e $f ]] && echo "$f"; done; }

check_format() {
  say "clang-format"
  sources '*.cpp' '*.h' '*.c' | xargs -r clang-format-14 --dry-run -Werror ||
    fail "format the files above with: clang-format-14 -i FILE"
}

check_pages() {
  say "pages: links, commands, environment variables, code"
  python3 -B tools/docs/check.py || fail "correct the pages above, or the sources that they describe"
}

check_layers() {
  say "layers: every include"
  python3 -B tools/check_layers.py || fail "remove the includes above, or name the layer in the CMakeLists.txt of its component"
}

make_reference() {
  say "Doxygen: build/docs/html/index.html"
  rm -rf build/docs && mkdir -p build/docs
  doxygen docs/api/Doxyfile >&2 || fail "Doxygen has warnings (above)"
}

check_headers() {
  say "public headers, each alone"
  cmake --build "$BUILD" -j "$JOBS" --target headers_stand_alone >&2 || fail "a public header does not include all that it uses (above)"
}

# check_lint all|changed: with the compile commands of the clang build, but without its precompiled headers, which only
# its own compiler can read.
check_lint() {
  local files= lint=$PWD/build/lint-torch$TORCH
  configure check "$lint" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
  if [[ $1 == changed ]]; then
    local base
    base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
    files=$({ git diff --name-only --diff-filter=d "$base" -- '*.cpp'; sources '*.cpp' | grep -Fxf <(git status --porcelain | cut -c4-) || true; } | sort -u)
  fi
  [[ $1 == all || -n $files ]] || { say "clang-tidy: no file to check"; return 0; }
  say "clang-tidy"
  # Files that this build does not compile are left out: peers and consumers have their own builds.
  xargs python3 -B tools/lint.py --tree "$lint" --clang-tidy .deps/clang-tidy/bin/clang-tidy --jobs "$JOBS" <<<"$files" ||
    fail "clang-tidy found something (above)"
}

# run_fuzzers MINUTES NAME...: each of the programs for libFuzzer, one after another, on its corpus in build/fuzz. An input with a
# finding is kept beside the corpus.
run_fuzzers() {
  local name folder found=() limit=$(($1 * 60))
  for name in "${@:2}"; do
    folder=$PWD/build/fuzz/$name
    mkdir -p "$folder/corpus"
    "$BUILD/bin/fuzz_$name" --write-seeds "$folder/seeds" || fail "fuzz: the seeds of $name are refused (above)"
    say "fuzz: $name, $limit s; the log is $folder/log"
    "$BUILD/bin/fuzz_$name" -max_total_time="$limit" -timeout=10 -rss_limit_mb=3000 -max_len=65536 -print_final_stats=1 \
      -artifact_prefix="$folder/" "$folder/corpus" "$folder/seeds" >"$folder/log" 2>&1 || found+=("$name")
    awk '/ cov: / {for (i = 1; i < NF; ++i) if ($i == "cov:") edges = $(i + 1)} /number_of_executed_units/ {runs = $2}
      END {printf "%s inputs, %s edges of the program seen\n", runs, edges}' "$folder/log" >&2
  done
  ((${#found[@]} == 0)) || fail "fuzz: a finding in ${found[*]}: the end of build/fuzz/NAME/log says what, and the input is beside it"
  say "fuzz: no finding"
}
