#!/bin/sh
# Simulate events, train a regressor on them, predict fresh ones.  Usage: sh examples/quickstart.sh [DIRECTORY]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
xectool=${XECTOOL:-xectool}
out=${1:-quickstart}
mkdir -p "$out/data"

$xectool simulate "$out/data/train.root" --events 3k --seed 1 --files 2
$xectool simulate "$out/data/val.root" --events 1k --seed 2
$xectool simulate "$out/data/test.root" --events 1k --seed 3

$xectool train "$here/quickstart.yaml" --run-name quickstart \
    --set data.train_path="$out/data/train_*.root" --set data.val_path="$out/data/val.root" \
    --set checkpoint.save_dir="$out/artifacts" --set checkpoint.overwrite=true

$xectool predict "$out/artifacts/quickstart/checkpoint_best.pt" "$out/data/test.root" \
    --output "$out/predictions.root" --report "$out/plots"
