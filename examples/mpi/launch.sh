#!/usr/bin/env bash
# The launcher's command: wait until the hostfile and discover_hosts.sh list the same workers, then
# start one rank in each slot.
set -euo pipefail
hostfile=${OMPI_MCA_orte_default_hostfile:?is set in the launcher of a job}
hosts=$(dirname "$hostfile")/discover_hosts.sh

wanted=$(awk 'NF { sub("slots=", ""); print $1 ":" $2 }' "$hostfile" | sort)
for _ in $(seq 1200); do
    running=$("$hosts" | sort)
    [[ $running == "$wanted" ]] && break
    sleep 0.1
done
if [[ $running != "$wanted" ]]; then
    printf 'the hostfile lists\n%s\nbut discover_hosts.sh prints\n%s\n' "$wanted" "$running" >&2
    exit 1
fi
echo "hosts:" $wanted

exec mpirun --allow-run-as-root --map-by slot python train.py
