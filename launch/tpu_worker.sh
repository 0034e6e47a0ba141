#!/usr/bin/env bash
# launch/tpu_vm.sh copies this script to every worker of a TPU VM and calls `install WHEEL` and `train SETTING...`.
# Training is the systemd unit xlnet: it outlives the ssh connection, and gets a signal when the machine shuts down.
set -euo pipefail

state=$(systemctl show xlnet --property=SubState --value)
case $state in
    dead | failed) ;;
    *) echo "xlnet is $state on $(hostname): left as it is; launch/tpu_vm.sh stop ends it" && exit ;;
esac

install() {
    # The machine's own Python is 3.10.
    curl -LsSf https://astral.sh/uv/install.sh | sh
    ~/.local/bin/uv venv --quiet --clear --python 3.12 ~/xlnet
    ~/.local/bin/uv pip install --quiet --python ~/xlnet/bin/python "xlnet_jax[tpu,gcs] @ file://$HOME/$1"
}

train() {
    sudo systemctl reset-failed xlnet 2>/dev/null || true # a failed unit stays loaded
    # The unit remains after success, which tells a finished run from one that was lost with its machine. Exit code 2 is
    # a mistake that a restart cannot mend. The TPU needs locked memory, of which services get little. systemd reads $$
    # as a dollar sign.
    sudo systemd-run --unit=xlnet --uid="$(id -un)" --working-directory="$HOME" --setenv=PYTHONUNBUFFERED=1 \
        --remain-after-exit --property=Restart=on-failure --property=RestartPreventExitStatus=2 \
        --property=RestartSec=10 --property=StartLimitIntervalSec=3600 --property=StartLimitBurst=20 \
        --property=TimeoutStopSec=600 --property=LimitMEMLOCK=infinity --property=LimitNOFILE=1048576 \
        ~/xlnet/bin/python -m xlnet_jax.train --tpu "${@//\$/\$\$}"
}

"$@"
