# The steps of `deploy/gcp create`. Each continues from what an earlier call left. Sourced, never run.
# shellcheck shell=bash
# shellcheck disable=SC2154  # the options are set in deploy/gcp

# --- Checks before a machine costs money.
QUOTA_FORMAT='--format=csv[no-heading](quotas.metric,quotas.limit,quotas.usage)'

# room METRIC QUOTAS: the free part of a quota; empty if it is not listed.
room() { printf '%s\n' "$2" | awk -F, -v metric="$1" '$1 == metric { print int($2 - $3) }'; }

# granted METRIC QUOTAS: whether a quota is above zero, free or used.
granted() { printf '%s\n' "$2" | awk -F, -v metric="$1" '$1 == metric && $2 > 0 { found = 1 } END { exit !found }'; }

# Check that the project is accessible and has quota for another card.
check_project() {
  local quotas free
  quotas=$(ask "GPUS_ALL_REGIONS,1,0" gcloud compute project-info describe --project="$PROJECT" '--flatten=quotas[]' "$QUOTA_FORMAT") ||
    trouble "project $PROJECT, with billing and the Compute Engine API" \
      "check the name with gcloud projects list, and enable the API with: gcloud services enable compute.googleapis.com --project=$PROJECT"
  [ "$KIND" = l4 ] || return 0
  free=$(room GPUS_ALL_REGIONS "$quotas")
  [ "${free:-1}" -ge 1 ] ||
    die "Expected quota for one GPU (GPUS_ALL_REGIONS) in project $PROJECT, got $free free; ask for it at https://console.cloud.google.com/iam-admin/quotas (an account on a free trial gets none until it is upgraded), or take --kind cpu."
}

# region_has_room REGION: whether the region's quota for this kind suffices; if it is not listed, creating the machine shows it.
region_has_room() {
  local quotas free metric=$QUOTA
  quotas=$(ask "$QUOTA,$QUOTA_NEEDED,0" gcloud compute regions describe "$1" --project="$PROJECT" '--flatten=quotas[]' "$QUOTA_FORMAT") ||
    trouble "region $1" "check --zones with: gcloud compute zones list"
  # Spot machines count against a spot quota if one was granted, otherwise against the general quota.
  [ -z "$SPOT" ] || ! granted "$SPOT_QUOTA" "$quotas" || metric=$SPOT_QUOTA
  free=$(room "$metric" "$quotas")
  [ "${free:-$QUOTA_NEEDED}" -ge "$QUOTA_NEEDED" ] && return
  say "Region $1 has no quota left ($metric: $QUOTA_NEEDED needed, $free free)."
  return 1
}

# Set IMAGE_FAMILY and IMAGE_PROJECT to the first image family that exists.
find_image() {
  local image
  while read -r IMAGE_FAMILY IMAGE_PROJECT; do
    if image=$(ask "$IMAGE_FAMILY-v1" gcloud compute images describe-from-family "$IMAGE_FAMILY" --project="$IMAGE_PROJECT" '--format=value(name)' </dev/null); then
      say "Image: $image"
      return
    fi
    grep -qiE 'not ?found|404' "$WORK/errors" || trouble "image family $IMAGE_FAMILY" "repeat when it answers"
    say "Image family $IMAGE_FAMILY is gone; trying the next."
  done <<<"$IMAGES"
  die "Expected one of the image families $(printf '%s\n' "$IMAGES" | awk '{ printf "%s%s", sep, $1; sep = ", " }'), found none; put a current one (gcloud compute images list --project=$IMAGE_PROJECT) into describe_kind in deploy/lib.sh."
}

# --- The machine and its resources.
# in_utc SECONDS: the time SECONDS from now, by GNU's date or macOS's.
in_utc() {
  local at=$(($(date +%s) + $1))
  date -u -d "@$at" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null || date -u -r "$at" +%Y-%m-%dT%H:%M:%SZ
}

# The end is a time, because a duration would restart with each restart of the machine. The machine runs code for anyone with
# the password, so it gets no service account.
create_in() { # ZONE; returns 1 if the zone has none free
  local zone="$1" flags ends
  ends=$(in_utc "$SECONDS_TO_RUN")
  flags=(--project="$PROJECT" --zone="$zone" --machine-type="$MACHINE_TYPE" "${KIND_FLAGS[@]}" --boot-disk-type=pd-balanced
    --image-family="$IMAGE_FAMILY" --image-project="$IMAGE_PROJECT"
    --termination-time="$ends" --instance-termination-action=DELETE --no-service-account --no-scopes
    --network="$NETWORK" --shielded-vtpm --shielded-integrity-monitoring --metadata="$METADATA" --labels="$LABEL=$KIND" --tags="$NAME")
  [ -z "$SUBNET" ] || flags+=(--subnet="$SUBNET")
  [ -z "$SPOT" ] || flags+=(--provisioning-model=SPOT)
  [ -n "$ADDRESS" ] || flags+=(--no-address)
  [ -z "$SECURE_BOOT" ] || flags+=(--shielded-secure-boot)
  say "Trying $zone …"
  [ -n "$DRY" ] || MADE=", machine $NAME in $zone (perhaps: its creation was not confirmed)"
  if quiet gcloud compute instances create "$NAME" "${flags[@]}"; then
    [ -n "$DRY" ] || MADE=", machine $NAME in $zone"
    MACHINE_ZONE=$zone
    say "Machine $NAME runs in $zone, and deletes itself in $HOURS h, at $ends."
    return
  fi
  if grep -qiE 'RESOURCE_POOL_EXHAUSTED|enough resources|STOCKOUT|not exist in zone|not available in zone|machineTypes/.*not found' "$WORK/errors"; then
    say "Zone $zone has no $MACHINE_TYPE free."
  elif grep -qi quota "$WORK/errors"; then
    say "Zone $zone has no quota left: $(reason)"
  else
    trouble "machine $NAME to be created" "see what the sentence names, and repeat"
  fi
  MADE=""
  return 1
}

create_somewhere() {
  local zone region full=" "
  check_project
  find_image
  for zone in ${ZONES//,/ }; do
    region=${zone%-*}
    case $full in *" $region "*) continue ;; esac
    if ! region_has_room "$region"; then
      full="$full$region "
    elif create_in "$zone"; then
      note "where $zone has none free, the same in the next of $ZONES"
      return
    fi
  done
  die "Expected a free $MACHINE_TYPE in one of $ZONES, found none; try later, other --zones${SPOT:+, or without --spot}. Nothing was made."
}

open_firewall() {
  local rules
  rules=$(list_rules "") || trouble "the list of firewall rules" "repeat when it answers"
  if ! grep -qx "$NAME-iap" <<<"$rules"; then
    quiet gcloud compute firewall-rules create "$NAME-iap" --project="$PROJECT" --network="$NETWORK" --description="$MADE_BY" --allow=tcp:22 --source-ranges="$IAP_RANGE" --target-tags="$NAME" ||
      trouble "a firewall rule for SSH through Google's proxy" "see that you may make one in project $PROJECT, and repeat"
    MADE="$MADE, firewall rule $NAME-iap"
  fi
  # First close an access for another address, or one no longer requested.
  if grep -qx "$NAME-direct" <<<"$rules"; then
    quiet gcloud compute firewall-rules delete "$NAME-direct" --project="$PROJECT" --quiet || trouble "firewall rule $NAME-direct to be removed" "repeat"
  fi
  [ -n "$EXPOSE_TO" ] || return 0
  quiet gcloud compute firewall-rules create "$NAME-direct" --project="$PROJECT" --network="$NETWORK" --description="$MADE_BY" --allow="tcp:$REMOTE_PORT" --source-ranges="$EXPOSE_TO/32" --target-tags="$NAME" ||
    trouble "a firewall rule for $EXPOSE_TO" "see that you may make one in project $PROJECT, and repeat"
  MADE="$MADE, firewall rule $NAME-direct"
}

# A machine without an external address needs NAT to download packages.
make_nat() {
  local region=${MACHINE_ZONE%-*} there
  there=$(list_routers "") || trouble "the list of routers" "repeat when it answers"
  if [ -z "$there" ]; then
    quiet gcloud compute routers create "$NAME-router" --project="$PROJECT" --region="$region" --description="$MADE_BY" --network="$NETWORK" || trouble "a router for Cloud NAT" "repeat"
    MADE="$MADE, router $NAME-router"
  fi
  there=$(ask "" gcloud compute routers nats list --project="$PROJECT" --region="$region" --router="$NAME-router" '--format=value(name)') ||
    trouble "the list of Cloud NATs" "repeat when it answers"
  [ -n "$there" ] || quiet gcloud compute routers nats create "$NAME-nat" --project="$PROJECT" --region="$region" --router="$NAME-router" \
    --nat-all-subnet-ip-ranges --auto-allocate-nat-external-ips || trouble "a Cloud NAT" "repeat"
}

install_there() {
  local host=127.0.0.1 archive="$WORK/project.tar.gz" setup="$HERE/setup.sh"
  [ -z "$EXPOSE_TO" ] || host=0.0.0.0
  [ -z "$DRY" ] || archive=project.tar.gz setup=deploy/setup.sh
  say "Waiting for SSH …"
  wait_for_ssh
  pack_project
  say "Copying the project …"
  # shellcheck disable=SC2046  # one word a line, none with a space
  quiet gcloud compute scp "$archive" "$setup" "$NAME:" $(ssh_flags) ||
    trouble "the project to be copied to $NAME" "repeat: it goes on from here"
  say "Installing there (some minutes the first time) …"
  on_machine run "bash setup.sh --archive project.tar.gz --host $host$([ "$KIND" = cpu ] || printf ' --gpu')" ||
    die "Expected the installation on $NAME to succeed, it stopped with the message above; repeat: it goes on from there."
}

# --- The machine's contents.
wait_for_ssh() {
  local tries=0
  until on_machine quiet true; do
    tries=$((tries + 1))
    ! grep -qi 'was not found' "$WORK/errors" || trouble "machine $NAME to be there" "perhaps Google took it back: repeat $SELF create"
    [ $tries -lt "${DEPLOY_TRIES:-20}" ] ||
      trouble "machine $NAME to accept SSH through the proxy" "see that you may use it (role roles/iap.tunnelResourceAccessor) and repeat"
    sleep "${DEPLOY_PAUSE_S:-10}"
  done
}

# Pack the working tree: with uncommitted files, without ignored and deleted ones.
pack_project() {
  if [ -n "$DRY" ]; then
    printf '%s\n' "git ls-files -z --cached --others --exclude-standard | tar --null -T - -czf project.tar.gz" >&3
    return
  fi
  git -C "$ROOT" rev-parse --git-dir >/dev/null 2>&1 || die "Expected $ROOT to be a git clone, it is none; clone the project and repeat from there."
  git -C "$ROOT" ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do if [ -e "$ROOT/$file" ]; then printf '%s\0' "$file"; fi; done |
    COPYFILE_DISABLE=1 tar -C "$ROOT" --null -T - -czf "$WORK/project.tar.gz"
}
