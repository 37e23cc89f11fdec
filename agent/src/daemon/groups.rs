//! What the cgroups of a process reveal: its container, its systemd unit, its Kubernetes pod.

/// The content of `/proc/PID/cgroup`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// The path, in the hierarchy with the most information.
    pub path: String,
    /// The id of the container.
    pub container: Option<String>,
    /// The systemd unit.
    pub unit: Option<String>,
    /// The id of the pod.
    pub pod: Option<String>,
}

/// The number of digits in a container's ID.
const ID: usize = 64;

impl Groups {
    /// Parses the text of the file.
    pub fn of(text: &str) -> Self {
        // Version 1 has a line for each controller; nearly always, all lines have the same path.
        let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let path = paths.max_by_key(|path| (container(path).is_some(), path.len())).unwrap_or_default();
        let units = path.rsplit('/').filter(|part| part.ends_with(".service") || part.ends_with(".scope"));
        let unit = units.into_iter().find(|part| container(part).is_none());
        Self {
            container: container(path),
            unit: unit.map(unescaped),
            pod: path.split('/').rev().find_map(pod),
            path: path.to_owned(),
        }
    }

    /// The name of a service that somebody has set up as a unit; [`None`] for logins, and for units that run
    /// containers.
    pub fn service(&self) -> Option<&str> {
        let name = self.unit.as_deref()?.strip_suffix(".service")?;
        (self.container.is_none() && !name.starts_with("user@")).then_some(name)
    }
}

/// The id of a container in a path: `docker-ID.scope`, `/docker/ID`, `cri-containerd-ID.scope`, `libpod-ID`.
fn container(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let id = name.rsplit(['-', ':']).next()?;
        (id.len() == ID && id.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| id.to_owned())
    })
}

/// The id of a pod: `kubepods-burstable-podUID.slice`, with `_` for `-`, or `podUID`.
fn pod(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let id = name.rsplit_once("pod").filter(|(before, _)| before.is_empty() || before.ends_with('-'))?.1;
    let id = id.replace('_', "-");
    let is_id = id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_id.then_some(id)
}

/// systemd writes `\x2d` for a `-` in names that it generates.
fn unescaped(name: &str) -> String {
    name.replace("\\x2d", "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_tell_containers_units_and_pods() {
        let id = "0123456789abcdef".repeat(4);
        let uid = "1b2c3d4e-1111-2222-3333-444455556666";
        let underscored = uid.replace('-', "_");
        let cases = [
            ("0::/system.slice/nginx.service".to_owned(), None, Some("nginx.service"), None, Some("nginx")),
            (
                "0::/user.slice/user-1.slice/user@1.service/app.slice/shop.service".to_owned(),
                None,
                Some("shop.service"),
                None,
                Some("shop"),
            ),
            ("0::/user.slice/user-1.slice/session-3.scope".to_owned(), None, Some("session-3.scope"), None, None),
            ("0::/user.slice/user-1.slice/user@1.service".to_owned(), None, Some("user@1.service"), None, None),
            (format!("0::/system.slice/docker-{id}.scope"), Some(&*id), None, None, None),
            (format!("12:cpu:/docker/{id}\n1:name=systemd:/docker/{id}"), Some(&*id), None, None, None),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscored}.slice/cri-containerd-{id}.scope"
                ),
                Some(&*id),
                None,
                Some(uid),
                None,
            ),
            (format!("1:cpu:/kubepods/besteffort/pod{uid}/{id}"), Some(&*id), None, Some(uid), None),
            (
                format!("0::/system.slice/containerd.service/kubepods-pod{underscored}.slice:cri-containerd:{id}"),
                Some(&*id),
                Some("containerd.service"),
                None,
                None,
            ),
            ("0::/".to_owned(), None, None, None, None),
            (String::new(), None, None, None, None),
        ];
        for (text, container, unit, pod, service) in cases {
            let groups = Groups::of(&text);
            assert_eq!(groups.container.as_deref(), container, "{text}");
            assert_eq!(groups.unit.as_deref(), unit, "{text}");
            assert_eq!(groups.pod.as_deref(), pod, "{text}");
            assert_eq!(groups.service(), service, "{text}");
        }
    }
}
