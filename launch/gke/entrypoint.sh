#!/usr/bin/env bash
# entrypoint.sh COMMAND...: runs a command of the image as the user xlnet. Only root may lift the limit of locked memory
# and hand over the TPU.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    ulimit -l unlimited || echo "locked memory stays limited: the container is not privileged" >&2
    for device in /dev/accel* /dev/vfio/*; do
        if [ -c "$device" ]; then chown xlnet "$device"; fi
    done
    exec setpriv --reuid=xlnet --regid=xlnet --init-groups "$@"
fi
exec "$@"
