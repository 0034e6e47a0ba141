#!/usr/bin/env bash
# Pretrain on Cloud TPU VMs, with a queued resource and a systemd unit on every worker.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name=xlnet zone='' project='' type='' slices=1 spot=false reserved=false runtime='' service_account='' worker=0 poll=60
usage() {
    cat <<EOF
usage: launch/tpu_vm.sh ACTION --zone ZONE [SETTING...] [-- SETTINGS OF xlnet_jax.train]

  create     requests the slices as a queued resource
  install    installs Python and the last commit of xlnet_jax on every worker
  train      starts training on every worker that is not training yet
  follow     prints the log until Ctrl-C
  resume     creates, installs and trains as needed, and again after every preemption, until the run is done
  stop       saves and stops training (end resume first: it would start training again)
  delete     returns the slices

  --zone ZONE                zone, such as us-east5-b
  --type TYPE                type of a slice, such as v6e-256 or v5litepod-16 (for create and resume)
  --slices N                 number of slices ($slices)
  --spot, --reserved         preemptible slices, or from a reservation (default: on demand)
  --name NAME                name of the queued resource and its nodes ($name)
  --runtime VERSION          runtime version of the machines (default: the one for JAX on this --type)
  --service-account EMAIL    service account with access to the bucket (default: Compute Engine's)
  --project PROJECT          Google Cloud project (default: gcloud's)
  --worker WORKER            worker whose log follow prints: a number, or all ($worker)
  --poll SECONDS             time between two checks by resume ($poll)
  --dry-run                  prints the commands without running them
EOF
}

tpus() {
    run gcloud compute tpus "$@" --zone="$zone" ${project:+--project="$project"} --quiet
}

# on_slices COMMAND...: calls COMMAND NODE for the nodes of all slices in parallel.
on_slices() {
    local i jobs='' failed=0
    if [ "$slices" = 1 ]; then
        "$@" "$name"
        return
    fi
    for ((i = 0; i < slices; i++)); do
        if $dry_run; then
            "$@" "$name-$i"
        else
            "$@" "$name-$i" &
            jobs+=" $!"
        fi
    done
    for i in $jobs; do wait "$i" || failed=1; done
    return $failed
}

on_workers() {
    tpus tpu-vm ssh "$2" --worker=all --command="$1"
}

create() {
    local nodes=(--node-id="$name") capacity=''
    [ "$slices" = 1 ] || nodes=(--node-count="$slices" --node-prefix="$name")
    if $spot; then capacity=--spot; elif $reserved; then capacity=--reserved; fi
    tpus queued-resources create "$name" "${nodes[@]}" \
        --accelerator-type="$type" --runtime-version="$runtime" \
        ${service_account:+--service-account="$service_account"} ${capacity:+"$capacity"}
}

install() {
    make_wheel && on_slices copy && on_slices on_workers "bash tpu_worker.sh install ${wheel##*/}"
}

copy() {
    tpus tpu-vm scp "$wheel" launch/tpu_worker.sh launch/requirements.txt "$1:" --worker=all
}

train() {
    on_slices on_workers "bash tpu_worker.sh train $(quoted "${rest[@]}")"
}

follow() {
    local node=$name
    [ "$slices" = 1 ] || node=$name-0
    tpus tpu-vm ssh "$node" --worker="$worker" \
        --command='sudo journalctl --unit=xlnet --follow --lines=100 --output=cat'
}

stop() {
    on_slices on_workers 'sudo systemctl stop xlnet'
}

delete() {
    tpus queued-resources delete "$name" --force
}

resume() {
    local before='' again="could not request the slices: will try again"
    look
    while [ "$seen" != 'done' ]; do
        [ "$seen" = "$before" ] || $dry_run || echo "$(date '+%F %T') $seen"
        case $seen/$before in
            absent/) create ;;
            absent/absent | absent/preempted) create || echo "$again" >&2 ;;
            absent/*) fail "the queued resource was deleted: run the same command to request a new one" ;;
            preempted/*) { delete && create; } || echo "$again" >&2 ;;
            idle/*) { install && train; } || echo "lost a worker during the start: will try again" >&2 ;;
            refused/*)
                fail "the queued resource failed: gcloud compute tpus queued-resources describe prints the reason"
                ;;
            failed/*) fail "training failed: launch/tpu_vm.sh follow --worker all prints the reason" ;;
        esac
        before=$seen
        run sleep "$poll"
        look
    done
    $dry_run || echo "the run is done: launch/tpu_vm.sh delete returns the slices"
}

# look: sets $seen to absent, preempted, refused, waiting, idle, running, failed or done. A dry run simulates a
# preemption, a new slice and the end of the run.
rehearsed_states=(SUSPENDED ACTIVE ACTIVE) rehearsed_units=('' 'xlnet dead 0' 'xlnet exited 0') looks=0
# shellcheck disable=SC2016 # the workers expand it
ask='show() { systemctl show xlnet --value --property="$1"; }; echo "xlnet $(show SubState) $(show ExecMainStatus)"'
look() {
    local state units
    if ! state=$(tpus queued-resources list --filter="name~/$name\$" --format='value(state.state)'); then
        [ "$looks" -gt 0 ] || fail "gcloud cannot list the queued resources: see its message above"
        state=unknown
    fi
    if $dry_run; then state=${rehearsed_states[looks]}; fi
    case $state in
        ACTIVE)
            units=$(on_slices on_workers "$ask") || units=unknown
            if $dry_run; then units=${rehearsed_units[looks]}; fi
            case $units in
                unknown) seen=waiting ;; # a machine is perhaps shutting down
                *'xlnet dead'* | *'xlnet failed 143'*) seen=idle ;;
                *'xlnet failed'*) seen=failed ;;
                *'xlnet exited'*) case ${units//xlnet exited/} in *xlnet*) seen=running ;; *) seen='done' ;; esac ;;
                *) seen=running ;;
            esac
            ;;
        '') seen=absent ;;
        SUSPENDED) seen=preempted ;;
        FAILED) seen=refused ;;
        *) seen=waiting ;;
    esac
    looks=$((looks + 1))
}

software() {
    case $type in
        v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
        v5litepod-*) echo v2-alpha-tpuv5-lite ;;
        v5p-*) echo v2-alpha-tpuv5 ;;
        v6e-*) echo v2-alpha-tpuv6e ;;
        *)
            fail "--type $type: give a v2-, v3-, v4-, v5litepod-, v5p- or v6e- type; for later TPUs use launch/gke/"
            ;;
    esac
}

action=${1-}
case $action in
    create | install | train | follow | resume | stop | delete) settings \
        'name zone project type slices runtime service-account worker poll' 'spot reserved' "${@:2}" ;;
    --help) usage && exit ;;
    *) fail "give an action: create, install, train, follow, resume, stop or delete; --help explains them" ;;
esac
required zone
whole_number slices poll
if [[ $action == create || $action == resume ]]; then
    required type
    runtime=${runtime:-$(software)}
fi
if [[ $action == train || $action == resume ]]; then cloud_workdir && named_slices "$slices"; fi
needs gcloud
if [[ $action == install || $action == resume ]]; then needs git "$python"; fi
"$action"
