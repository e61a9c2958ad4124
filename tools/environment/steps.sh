# Shell functions of the scripts in tools/; read with `source`.
#
# MMATTN_LOG  file for the output of the steps; default: a temporary file, which is printed if a step fails

if [ -t 1 ]; then tag=$'\033[1m[mmattn]\033[0m'; else tag='[mmattn]'; fi
say() { printf '%s %s\n' "$tag" "$*"; }
fail() { printf '[mmattn] error: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "$1"; } # of a script: the comment at its beginning

# step LABEL COMMAND…: run the command with its output in the log, and print one line with its seconds. Meanwhile, a terminal
# shows a bar of the last counter [n/m] in the log; elsewhere, a line is printed each minute. If the command fails, the end of
# its output is printed.
step() {
    local label=$1 start=$SECONDS log=${MMATTN_LOG:-} code=0 before ticker
    shift
    if [ -z "$log" ]; then log=$(mktemp); else mkdir -p "$(dirname "$log")"; fi
    printf '\n=== %s\n' "$label" >>"$log"
    before=$(wc -c <"$log")
    show_progress "$label" "$log" "$before" 2>/dev/null & # bash may complain when it is killed
    ticker=$!
    "$@" >>"$log" 2>&1 || code=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    if [ -t 1 ]; then printf '\r\033[K'; fi
    if [ $code = 0 ]; then
        printf '%s %-62s %4d s\n' "$tag" "$label" $((SECONDS - start))
    else
        tail -c +$((before + 1)) "$log" | tail -n 20 >&2
        printf '[mmattn] failed after %d s: %s%s\n' $((SECONDS - start)) "$label" "${MMATTN_LOG:+; all output: $log}" >&2
    fi
    if [ -z "${MMATTN_LOG:-}" ]; then rm -f "$log"; fi
    return $code
}

show_progress() { # LABEL LOG BYTES
    local start=$SECONDS seconds counter done total bar
    while sleep 1 && kill -0 $$ 2>/dev/null; do # ends with the script, however that ends
        seconds=$((SECONDS - start))
        if [ ! -t 1 ] && [ $((seconds % 60)) != 59 ]; then continue; fi
        counter=$(tail -c +$(($3 + 1)) "$2" | grep -aoE '\[ *[0-9]+/ *[0-9]+\]' | tail -n 1 | tr -d '[] ') || true
        done=${counter%/*} total=${counter#*/} bar=
        if [ "${total:-0}" -gt 0 ] && [ "$done" -le "$total" ]; then
            bar=$(printf '%*s' $((done * 20 / total)) '' | tr ' ' '#')
            bar=$(printf '[%-20s] %s' "$bar" "$counter")
        fi
        if [ -t 1 ]; then printf '\r\033[K%s %s %d s %s' "$tag" "$1" "$seconds" "$bar"
        else printf '[mmattn] %s: %d s %s\n' "$1" "$seconds" "$bar"; fi
    done
}
