#!/bin/bash
# own_kernel.sh DIR PROGRAM...: run a program as root under a real systemd on a User-Mode-Linux kernel: one of its own, so
# that cgroup v2 has cpu, memory and pids whatever the machine does with them. It sees / and writes to a copy of it in
# memory; DIR/share is /run/px there. Its output comes to DIR/share/out, and its exit code is ours; 125: no kernel boots.
# Debian: user-mode-linux systemd dbus libpam-systemd
set -euo pipefail
S=$(realpath -m "$1"); shift
M=$(echo /usr/lib/uml/modules/*); mkdir -p "$S/root" "$S/share"
printf '%q ' "$@" >"$S/share/run.sh"
cat >"$S/init" <<'EOF2'
#!/bin/bash
set -e; export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; S=$(grep -o 'px_s=[^ ]*' /proc/cmdline | cut -c6-); M=$(grep -o 'px_m=[^ ]*' /proc/cmdline | cut -c6-)
python3 -S -c 'import ctypes, os, sys
assert ctypes.CDLL(None).syscall(313, os.open(sys.argv[1], 0), b"", 0) == 0' "$M/kernel/fs/overlayfs/overlay.ko" # finit_module
cd "$S"; mount -t tmpfs -o mode=755 px root; cd root; mkdir u w m; mount -t overlay -o lowerdir=/,upperdir=u,workdir=w px m; cd m
mount -t proc proc proc; mount -t sysfs sysfs sys; mount -t cgroup2 cgroup2 sys/fs/cgroup; mount -t devtmpfs dev dev
mount -t tmpfs -o mode=755,nosuid,nodev px run; mkdir -p run/systemd/system run/tmpfiles.d run/old run/px
mount -t hostfs -o "$S/share" none run/px
ln -s /dev/null run/tmpfiles.d/tmp.conf # or it removes what lies in /tmp, file by file
cd run/systemd/system
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=dbus.service systemd-logind.service systemd-user-sessions.service px-run.service\n' >px-test.target
printf '[Unit]\nAfter=systemd-user-sessions.service dbus.service\nSuccessAction=poweroff-force\nFailureAction=poweroff-force\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/bash -c "bash /run/px/run.sh >/run/px/out 2>&1; echo $? >/run/px/rc; sync"\n' >px-run.service
for u in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-kernel.socket systemd-udevd-control.socket modprobe@.service \
  systemd-modules-load.service systemd-timesyncd.service systemd-networkd.service systemd-resolved.service timers.target tmp.mount \
  systemd-tmpfiles-setup-dev.service systemd-journal-flush.service systemd-binfmt.service systemd-sysctl.service \
  sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \
  dev-hugepages.mount dev-mqueue.mount proc-sys-fs-binfmt_misc.automount; do ln -s /dev/null $u; done
cd "$S/root/m"; rm -f .dockerenv; echo px-own-kernel >etc/hostname; pivot_root . run/old; umount -l /run/old; mount --make-rshared /
exec env -i PATH="$PATH" LANG=C.UTF-8 /lib/systemd/systemd --system --unit=px-test.target --show-status=0
EOF2
chmod +x "$S/init"
TMPDIR=/dev/shm linux.uml mem=1G umid="px$$" uml_dir="$S/uml" rootfstype=hostfs rootflags=/ ro init="$S/init" \
  px_s="$S" px_m="$M" con=null con0=fd:0,fd:1 ssl=null quiet </dev/null >"$S/log" 2>&1 || true
[ -s "$S/share/rc" ] || { tail -20 "$S/log" >&2; [ -e "$S/share/out" ] || exit 125; exit 1; }
exit "$(cat "$S/share/rc")"
