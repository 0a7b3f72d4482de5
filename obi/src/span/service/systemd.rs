//! A control group's path to the systemd service unit in it.
//!
//! In: the path. Out: the unit's name without `.service` and instance. Units that start other people's programs
//! (logins, containers, schedulers) name none of them.

/// Units whose processes are not their own.
const STARTERS: [&str; 32] = [
    "actions-runner",
    "anacron",
    "atd",
    "buildkit",
    "cloud-final",
    "cloud-init",
    "console-getty",
    "containerd",
    "cri-o",
    "crio",
    "cron",
    "crond",
    "cronie",
    "docker",
    "dropbear",
    "emergency",
    "gdm",
    "getty",
    "gitlab-runner",
    "init",
    "k3s",
    "k3s-agent",
    "kubelet",
    "lightdm",
    "podman",
    "rc-local",
    "rescue",
    "sddm",
    "serial-getty",
    "ssh",
    "sshd",
    "supervisor",
];

/// The unit that the process belongs to; `None` for sessions, scopes, user managers and starters.
pub(super) fn unit(cgroup: &str) -> Option<String> {
    let mut names = cgroup.split('/').filter_map(|part| part.strip_suffix(".service"));
    let full = names.rfind(|name| !name.starts_with("user@"))?;
    // Instances of a template are replicas of one service.
    let (base, _) = full.split_once('@').unwrap_or((full, ""));
    let base = unescape(base);
    let starter = STARTERS.contains(&base.as_str()) || base == "supervisord" || base == "user";
    (!base.is_empty() && !starter).then_some(base)
}

/// systemd writes bytes that cannot stand in a name as `\xNN`.
fn unescape(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut text = parts.next().unwrap_or("").to_owned();
    for part in parts {
        match part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii_graphic) {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(&part[2..]);
            }
            None => {
                text.push_str("\\x");
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units() {
        fn check(cgroup: &str, expected: Option<&str>) {
            assert_eq!(unit(cgroup).as_deref(), expected, "{cgroup}");
        }
        check("/system.slice/nginx.service", Some("nginx"));
        check("/system.slice/shop\\x2dcart.service", Some("shop-cart"));
        check("/system.slice/system-shop.slice/shop@8081.service", Some("shop"));
        check("/system.slice/nginx.service/worker", Some("nginx"));
        check("/user.slice/user-1000.slice/user@1000.service/app.slice/notes.service", Some("notes"));
        check("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", None);
        check("/user.slice/user-0.slice/session-3.scope", None);
        check("/system.slice/ssh.service", None);
        check("/system.slice/sshd@3.service", None);
        check("/system.slice/docker.service", None);
        check("/system.slice/docker-0123.scope", None);
        check("/system.slice/containerd.service", None);
        check("/system.slice/cron.service", None);
        check("/system.slice/system-getty.slice/getty@tty1.service", None);
        check("/init.scope", None);
        check("/system.slice", None);
        check("/system.slice/.service", None);
        check("", None);
    }

    proptest! {
        #[test]
        fn any_path_is_read(path in "[a-z/@.\\\\x0-9é]{0,60}(\\.service)?") {
            unit(&path);
        }
    }
}
