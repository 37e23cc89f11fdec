//! The attributes of a process's profiles.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use lj_trace_luajit::page_cache::PageCache;
use lj_trace_luajit::status::VmSummary;
use lj_trace_luajit::{Vm, VmStatus};
use lj_trace_process::{Maps, Process, proc_file};
use lj_trace_profile::Resource;
use lj_trace_text::untrusted::Untrusted;
use lj_trace_unwind::module::Module;
use lj_trace_unwind::opened::FileView;
use lj_trace_unwind::symbols::links;

use super::config::AgentConfig;
use super::groups::Groups;
use super::rules::attribute;

/// How many bytes of a process's environment to read at most.
const ENVIRONMENT: u64 = 1 << 20;

/// How many attributes a process may set for itself, and how many bytes each value may have.
const MOST_ATTRIBUTES: usize = 16;
const LONGEST_VALUE: usize = 256;

/// The prefix of attributes that come from VMs.
const OF_VMS: &str = "luajit.";

/// Attributes by container id.
pub type ContainerAttributes = BTreeMap<String, BTreeMap<String, String>>;

/// The attributes that all processes of this host share.
#[derive(Clone, Debug, Default)]
pub struct HostAttributes(Vec<(&'static str, String)>);

impl HostAttributes {
    /// Reads the attributes of the host that this process runs on.
    pub fn read() -> Self {
        let text = |path: &str| proc_file::read_text(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self(vec![
            ("host.name", text("/proc/sys/kernel/hostname")),
            ("host.id", text("/etc/machine-id")),
            ("os.type", "linux".to_owned()),
            ("os.version", text("/proc/sys/kernel/osrelease")),
        ])
    }

    /// The host's name and ID, for whatever has to differ between hosts.
    pub fn identity(&self) -> String {
        self.0.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("/")
    }
}

/// The attributes of a process that can be read without searching for its VMs.
pub fn resource(
    process: &Process,
    host: &HostAttributes,
    config: &AgentConfig,
    containers: &ContainerAttributes,
) -> Resource {
    let pid = process.pid();
    let mut resource = Resource::default();
    host.0.iter().for_each(|(key, value)| resource.set(key, value));
    resource.set("process.pid", pid.to_string());
    let command = process.command();
    resource.set(attribute::COMMAND, &command);
    if let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) {
        let path = program.to_string_lossy();
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        resource.set("process.executable.path", Untrusted(path).text());
        let name = Path::new(path).file_name().map(|name| Untrusted(&name.to_string_lossy()).text().into_owned());
        resource.set(attribute::EXECUTABLE, name.unwrap_or_default());
    }
    let groups = Groups::of(&proc_file::read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default());
    resource.set("linux.cgroup.path", Untrusted(&groups.path).text());
    resource.set(attribute::UNIT, groups.unit.clone().unwrap_or_default());
    resource.set(attribute::CONTAINER, groups.container.clone().unwrap_or_default());
    resource.set("k8s.pod.uid", groups.pod.clone().unwrap_or_default());
    let environment = File::open(format!("/proc/{pid}/environ")).and_then(|file| {
        let mut bytes = Vec::new();
        file.take(ENVIRONMENT).read_to_end(&mut bytes).map(|_| bytes)
    });
    let told = told_by(&environment.unwrap_or_default());
    let unit = groups.service().unwrap_or(&command);
    resource.set(Resource::SERVICE_NAME, unit);
    told.into_iter().for_each(|(key, value)| resource.set(&key, value));
    config.labels.iter().for_each(|(key, value)| resource.set(key, value));
    let of_container = groups.container.iter().filter_map(|id| {
        // Files have full IDs; people write the first digits.
        containers.iter().find(|(known, _)| known.len() >= 12 && id.starts_with(known.as_str()))
    });
    of_container.flat_map(|(_, attributes)| attributes).for_each(|(key, value)| resource.set(key, value));
    if let Some(service) = config.service.iter().find(|service| service.of.chooses(&resource)) {
        resource.set(Resource::SERVICE_NAME, &service.name);
    }
    resource
}

/// Adds the attributes from the VMs of a process.
pub fn add_vms(resource: &mut Resource, process: &Process, maps: &Maps, vms: &[Vm]) {
    let memory = process.memory();
    resource.set("luajit.vms", vms.len().to_string());
    if let Some(vm) = vms.first() {
        let status = VmStatus::read(&memory, vm).ok();
        let summary = VmSummary::read(&PageCache::new(&memory), maps, vm, status.as_ref());
        resource.set("luajit.fork", vm.fork());
        resource.set("luajit.version", summary.version.as_deref().map(short).unwrap_or_default());
        resource.set("luajit.gc64", vm.layout.is_gc64().to_string());
        resource.set("luajit.jit", status.map_or("", |status| status.jit.describe()));
    }
    let program = fs::read_link(format!("/proc/{}/exe", process.pid())).unwrap_or_default();
    let of_program = |mapping: &&lj_trace_process::Mapping| mapping.exec && Path::new(&mapping.path) == program;
    let module = maps.iter().find(of_program).and_then(|mapping| Module::open(process, FileView::of(process), mapping));
    let build_id = module.and_then(|module| links(&module).build_id).unwrap_or_default();
    let build_id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    resource.set("process.executable.build_id.gnu", build_id);
}

/// Copies the attributes from VMs that were read before.
pub fn take_vms(resource: &mut Resource, known: &Resource) {
    known.attributes().filter(|(key, _)| key.starts_with(OF_VMS)).for_each(|(key, value)| resource.set(key, value));
}

/// The attributes in a process's environment, as OpenTelemetry's SDKs read them: `OTEL_RESOURCE_ATTRIBUTES`, and
/// `OTEL_SERVICE_NAME`, which overrides the service in the former.
fn told_by(environment: &[u8]) -> Vec<(String, String)> {
    let variable = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let pairs = attributes.split(',').filter_map(|pair| pair.split_once('=')).take(MOST_ATTRIBUTES);
    let pairs = pairs.map(|(key, value)| (key.trim().to_owned(), percent_decoded(value.trim())));
    let name = variable("OTEL_SERVICE_NAME").map(|name| (Resource::SERVICE_NAME.to_owned(), name));
    let told = pairs.chain(name).filter(|(key, value)| !key.is_empty() && !value.is_empty() && is_free(key));
    told.map(|(key, value)| (short(&key), short(&value))).collect()
}

/// Whether a process may set this attribute for itself. It may not set what lj-trace finds out by other means.
fn is_free(key: &str) -> bool {
    let known = ["process.", "host.", "luajit.", "os.", "linux.", attribute::UNIT, attribute::CONTAINER];
    !known.iter().any(|known| key.starts_with(known))
}

/// Text of a process, cut to the length of a label, and with everything escaped that is not plain text.
fn short(text: &str) -> String {
    let text = Untrusted(text).text();
    let end = (0..=LONGEST_VALUE.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

/// Values with a comma or an equals sign are percent-encoded.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hexadecimal = after.first_chunk::<2>().and_then(|two| std::str::from_utf8(two).ok());
        match hexadecimal.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_what_it_is() {
        let told = |text: &str| told_by(text.as_bytes());
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let both = told("A=b\0OTEL_RESOURCE_ATTRIBUTES=service.name=a,team=x%2Cy\0OTEL_SERVICE_NAME=shop\0");
        assert_eq!(both, [pair("service.name", "a"), pair("team", "x,y"), pair("service.name", "shop")]);
        assert_eq!(told("XOTEL_SERVICE_NAME=shop\0OTEL_SERVICE_NAME=\0"), []);
        assert_eq!(told("OTEL_RESOURCE_ATTRIBUTES=process.pid=1,host.name=x,=,k=,container.id=7,a\0"), []);
        let long = told(&format!("OTEL_SERVICE_NAME={}\0", "é".repeat(1000)));
        assert_eq!(long[0].1.len(), LONGEST_VALUE);
        let many = (0..100).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        assert_eq!(told(&format!("OTEL_RESOURCE_ATTRIBUTES={many}")).len(), MOST_ATTRIBUTES);
    }

    #[test]
    fn what_vms_have_told_stays_known() {
        let mut known = Resource::of_service("old");
        known.set("luajit.fork", "LuaJIT");
        let mut resource = Resource::of_service("new");
        take_vms(&mut resource, &known);
        assert_eq!((resource.service(), resource.get("luajit.fork")), ("new", Some("LuaJIT")));
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for (text, decoded) in [("a%20b", "a b"), ("100%", "100%"), ("%zz%4", "%zz%4"), ("%C3%A9", "é"), ("", "")] {
            assert_eq!(percent_decoded(text), decoded, "{text}");
        }
    }

    #[test]
    fn this_process_has_a_name_and_a_host() {
        let process = Process::open(std::process::id()).unwrap();
        let resource =
            resource(&process, &HostAttributes::read(), &AgentConfig::default(), &ContainerAttributes::new());
        assert_eq!(resource.get("process.pid"), Some(std::process::id().to_string().as_str()));
        for key in [Resource::SERVICE_NAME, "host.name", "os.version", attribute::EXECUTABLE] {
            assert!(resource.get(key).is_some_and(|value| !value.is_empty()), "{key}");
        }
    }
}
