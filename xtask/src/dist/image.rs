//! An OCI image (image-spec 1.1) that contains only the static binary. The same binary results in the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::machine::Machine;
use crate::run::{output, run_quietly};

/// The path of the program in the image.
const PROGRAM: &str = "/usr/bin/lj-trace";

/// A file of an image, named by its digest.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    /// Adds a file to the folder of blobs.
    fn of(file: &Path, blobs: &Path) -> Result<Self> {
        let hash = sha256(file)?;
        let size = fs::metadata(file)?.len();
        fs::rename(file, blobs.join(&hash))?;
        Ok(Self { digest: format!("sha256:{hash}"), size })
    }

    /// The same for a JSON value.
    fn of_json(value: &Value, blobs: &Path) -> Result<Self> {
        let file = blobs.join("new");
        fs::write(&file, value.to_string())?;
        Self::of(&file, blobs)
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": self.digest, "size": self.size })
    }
}

/// Creates the image of a binary in `folder`, which is emptied first, and packs it into one file.
pub fn pack(machine: Machine, binary: &Path, version: &str, folder: &Path, into: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let (layout, root) = (folder.join("layout"), folder.join("root"));
    let blobs = layout.join("blobs/sha256");
    let program = root.join(PROGRAM.trim_start_matches('/'));
    fs::create_dir_all(&blobs)?;
    fs::create_dir_all(program.parent().unwrap_or(&root))?;
    fs::copy(binary, &program)?;
    let layer = folder.join("layer.tar");
    archive(&root, &layer)?;
    let uncompressed = format!("sha256:{}", sha256(&layer)?);
    run_quietly(Command::new("gzip").args(["-9", "-n"]).arg(&layer))?;
    let layer = Blob::of(&folder.join("layer.tar.gz"), &blobs)?;
    let config = json!({
        "architecture": machine.debian(),
        "os": "linux",
        "config": {
            "Entrypoint": [PROGRAM],
            "Cmd": ["agent"],
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "lj-trace",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [uncompressed] },
    });
    let config = Blob::of_json(&config, &blobs)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("config.v1+json"),
        "layers": [layer.descriptor("layer.v1.tar+gzip")],
    });
    let mut manifest = Blob::of_json(&manifest, &blobs)?.descriptor("manifest.v1+json");
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": format!("docker.io/library/lj-trace:{version}"),
    });
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    archive(&layout, into)
}

/// The file name for the image of a version.
pub fn name(machine: Machine, version: &str) -> PathBuf {
    format!("lj-trace-{version}-{}-image.tar", machine.name()).into()
}

/// Packs a folder without traces of this machine: no times, no owners, a fixed order.
fn archive(folder: &Path, into: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--format=ustar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mode=u=rwX,go=rX", "-cf"]).arg(into).arg("-C").arg(folder);
    let mut names: Vec<_> = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    run_quietly(tar.args(names))
}

fn sha256(file: &Path) -> Result<String> {
    let said = output(Command::new("sha256sum").arg("--").arg(file))?;
    said.split_whitespace().next().map(str::to_owned).context("sha256sum says nothing")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_image_is_whole_and_the_same_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("lj-trace");
        fs::write(&binary, "#!/bin/sh\n".repeat(1000)).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let make = |name: &str| {
            let (work, image) = (folder.path().join(name), folder.path().join(format!("{name}.tar")));
            pack(Machine::Aarch64, &binary, "1.2.3", &work, &image).unwrap();
            fs::read(image).unwrap()
        };
        assert_eq!(make("one"), make("other"));
        let layout = folder.path().join("one/layout");
        let read = |file: &Path| serde_json::from_slice::<Value>(&fs::read(file).unwrap()).unwrap();
        // Each descriptor refers to an existing blob, with the right size and digest.
        let blob = |descriptor: &Value| {
            let hash = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let file = layout.join("blobs/sha256").join(hash);
            assert_eq!(
                (sha256(&file).unwrap().as_str(), fs::metadata(&file).unwrap().len()),
                (hash, descriptor["size"].as_u64().unwrap())
            );
            file
        };
        let manifest = read(&blob(&read(&layout.join("index.json"))["manifests"][0]));
        let config = read(&blob(&manifest["config"]));
        let layer = blob(&manifest["layers"][0]);
        let unpacked = folder.path().join("layer.tar");
        fs::write(&unpacked, Command::new("gzip").arg("-dc").arg(&layer).output().unwrap().stdout).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(&unpacked).unwrap()));
        let listed = output(Command::new("tar").arg("-tvf").arg(&unpacked)).unwrap();
        let program = listed.lines().last().unwrap();
        assert!(program.starts_with("-rwxr-xr-x 0/0") && program.ends_with(&PROGRAM[1..]), "{listed}");
        assert_eq!(config["config"]["Entrypoint"][0], PROGRAM);
        assert_eq!(config["architecture"], "arm64");
    }
}
