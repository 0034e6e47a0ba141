#!/usr/bin/env bash
# launch/tpu_vm.sh copies this script, the wheel and constraints.txt to every worker of a TPU VM and calls `install WHEEL`
# and `train SETTING...`.
# Training is the systemd unit xlnet: it outlives the ssh connection, and gets a signal when the machine shuts down.
set -euo pipefail

state=$(systemctl show xlnet --property=SubState --value)
case $state in
    dead | failed | exited) ;;
    *) echo "xlnet is $state on $(hostname): left as it is; launch/tpu_vm.sh stop ends it" && exit ;;
esac

install() {
    # The machine's own Python is 3.10. uv brings a newer one, whose checksum it knows.
    echo "uv==0.13.9 --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19" >uv.txt
    python3 -m pip install --quiet --disable-pip-version-check --require-hashes --upgrade --target ~/uv --requirement uv.txt
    ~/uv/bin/uv venv --quiet --clear --python 3.12 ~/xlnet
    ~/uv/bin/uv pip install --quiet --python ~/xlnet/bin/python --constraint constraints.txt \
        "xlnet_jax[tpu,gcs] @ file://$HOME/$1"
}

train() {
    # A unit that has failed or is done stays loaded. One that is done starts again where another worker is not.
    sudo systemctl reset-failed xlnet 2>/dev/null || true
    if [ "$state" = exited ]; then sudo systemctl stop xlnet; fi
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
