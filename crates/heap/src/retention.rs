//! The exact path by which one object is kept alive.

use lj_trace_luajit::Vm;
use lj_trace_luajit::shape::Shape;

use super::blocks::{Blocks, ReadSome};
use super::edges::{ObjectEdges, Step};
use super::index::{NO_PLACE, UNREACHED};
use super::labels::{Locals, StepLabels};
use super::object::{Header, Kind};
use super::walk::Walked;

/// The number of first steps and of last steps that are shown of a longer path.
const SHOWN: usize = 12;

/// The most steps of a path; longer ones are cut off. A linked list of a million elements has such a path.
const MAX_STEPS: usize = 20_000;

/// Why an object has no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPath {
    /// The walk has met no object at this address.
    NoObject,
    /// The object is garbage: nothing refers to it.
    Garbage,
}

/// Shows paths in a walked heap.
#[derive(Debug)]
pub struct RetentionPaths<'a, M> {
    blocks: &'a Blocks<M>,
    shape: Shape,
    edges: ObjectEdges<'a, M>,
    labels: &'a StepLabels<'a, M>,
}

impl<'a, M: ReadSome> RetentionPaths<'a, M> {
    /// Paths in the heap of `vm`.
    pub fn new(blocks: &'a Blocks<M>, vm: &Vm, labels: &'a StepLabels<'a, M>) -> Self {
        let shape = Shape::new(vm.layout);
        Self { blocks, shape, edges: ObjectEdges::new(blocks, shape, vm.global), labels }
    }

    /// A short description of an object.
    pub fn preview(&self, address: u64) -> String {
        Header::read(self.blocks, &self.shape, address).map_or_else(String::new, |object| self.labels.preview(&object))
    }

    /// The path to the object at `address`: `globals.sessions[17].user`.
    ///
    /// # Errors
    /// [`NoPath`] if there is no path.
    pub fn to(&self, walked: &mut Walked<'_>, address: u64) -> Result<String, NoPath> {
        let mut place = walked.index.place(address).ok_or(NoPath::NoObject)?;
        let mut addresses = vec![address];
        let root = loop {
            match walked.index.parent(place).ok_or(NoPath::NoObject)? {
                UNREACHED => return Err(NoPath::Garbage),
                root if root >= NO_PLACE => {
                    break walked.roots.get((root - NO_PLACE) as usize).map_or("VM", |root| root.name);
                }
                _ if addresses.len() >= MAX_STEPS => break "...",
                parent => {
                    place = super::index::PlaceNumber(parent);
                    addresses.push(walked.index.address(place));
                }
            }
        };
        addresses.reverse();
        let mut text = root.to_owned();
        let steps = addresses.len() - 1;
        for (index, pair) in addresses.windows(2).enumerate() {
            if steps > 2 * SHOWN + 1 && (SHOWN..steps - SHOWN).contains(&index) {
                if index == SHOWN {
                    text.push_str(&format!(" ... ({} more) ... ", steps - 2 * SHOWN));
                }
                continue;
            }
            text.push_str(&self.step(pair[0], pair[1]));
        }
        Ok(text)
    }

    /// How one object refers to another, as text.
    fn step(&self, from: u64, to: u64) -> String {
        let Some(object) = Header::read(self.blocks, &self.shape, from) else { return " ?".to_owned() };
        let mut found: Option<Step> = None;
        self.edges.of(&object, &mut |edge| {
            // If the object is both key and value of the same table, prefer the value.
            if edge.to == to && found.is_none_or(|step| step == Step::Key) {
                found = Some(edge.step);
            }
        });
        let is_thread = self.labels.is_thread(&object);
        let locals = if is_thread { self.labels.locals(&object) } else { Locals::new() };
        found.map_or_else(|| " ?".to_owned(), |step| self.labels.text(&step, &locals))
    }
}

/// The objects that the user asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathTarget {
    /// Every object of a type.
    Kind(Kind),
    /// The object at an address.
    Address(u64),
}

impl std::str::FromStr for PathTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        address.map(Self::Address).or_else(|| Kind::of_name(text).map(Self::Kind)).ok_or_else(|| {
            let names = Kind::ALL.map(|kind| kind.name().replace(' ', "-").to_lowercase()).join(", ");
            format!("neither an address (0x...) nor a type of objects ({names})")
        })
    }
}
