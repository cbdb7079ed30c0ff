#!/bin/sh
# Folders for docker/compose.yaml: the server's certificate, four users' keys. Data is yours to add:
# one .npz or .csv file in FEDERATION/user-N/data. Usage: sh docker/prepare.sh FEDERATION
set -eu
root=${1:?give a folder that is not there yet}
ucfl=${UCFL:-ucfl}
umask 077
mkdir "$root" "$root/server" "$root/server/keys"
"$ucfl" deploy certificate server --out "$root/server/certificates"
printf 'base = "rotated-mnist"\nname = "mine"\nrounds = 20\n' > "$root/server/scenario.toml"
for number in 1 2 3 4; do
    user=$root/user-$number
    mkdir "$user" "$user/data"
    "$ucfl" deploy key "user-$number" --out "$user"
    mv "$user/user-$number.pub" "$root/server/keys/"
    cp "$root/server/certificates/ca.pem" "$user/"
done
echo "now put a data file into each $root/user-N/data; files must belong to user 10001 (chown -R)"
