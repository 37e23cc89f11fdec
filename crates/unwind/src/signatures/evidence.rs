//! How well a function fits a name: the evidence for and against.
//!
//! The witnesses of a function are its callers, its callees and its constants. A rare witness says more: each counts by
//! the logarithm of its rarity among the signatures. A witness that is expected but missing, and one that was never
//! seen with the name, speak against the name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::table::{Element, NameId, SignatureTable};

/// The data of the signature table, indexed for lookups.
#[derive(Debug)]
pub struct Expectations {
    /// For each name, the names that its function refers to, each with the share of builds in which it does.
    callees: Vec<BTreeMap<NameId, f32>>,
    /// For each name, the names that refer to its function, in the same form.
    callers: Vec<BTreeMap<NameId, f32>>,
    constants: Vec<BTreeMap<u32, f32>>,
    /// For each name or constant, how much it says as a callee, as a caller, or as a constant.
    callee_weights: Vec<f32>,
    caller_weights: Vec<f32>,
    constant_weights: HashMap<u32, f32>,
}

/// The least evidence for a name: two witnesses that occur with one name in 150 each, or more witnesses that say less.
/// This and the next values were chosen with builds from which no signature was learned (docs/symbols.md).
const ENOUGH: f32 = 10.0;

/// The least evidence if witnesses have already said where exactly they refer to the function.
const ENOUGH_TO_CONFIRM: f32 = 4.0;

/// The most evidence against a name, as a share of the evidence for it: compilers inline some calls into the caller.
const MOST_AGAINST: f32 = 0.4;

/// How far the evidence for the second-best name must be behind.
pub const MARGIN: f32 = 8.0;

/// The evidence for and against a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignatureEvidence {
    /// Evidence for the name.
    pub for_it: f32,
    /// Evidence against the name.
    pub against: f32,
    /// How many witnesses speak for the name.
    pub witnesses: usize,
    /// How many of these witnesses refer to the function.
    pub referrers: usize,
}

impl SignatureEvidence {
    /// Whether the evidence suffices to give the name.
    pub fn is_clear(&self) -> bool {
        self.referrers >= 1
            && self.witnesses >= 2
            && self.for_it >= ENOUGH
            && self.against <= self.for_it * MOST_AGAINST
    }

    /// Whether the evidence confirms a name that other witnesses have given.
    pub fn confirms(&self) -> bool {
        self.for_it >= ENOUGH_TO_CONFIRM && self.against <= self.for_it * MOST_AGAINST
    }

    /// Evidence for the name minus evidence against it.
    pub fn balance(&self) -> f32 {
        self.for_it - self.against
    }

    fn add(&mut self, weight: f32, speaks_for: bool) {
        if speaks_for {
            self.for_it += weight;
            self.witnesses += 1;
        } else {
            self.against += weight;
        }
    }

    /// Compares one kind of witnesses: what is seen, what is expected, and whether an expected one could be seen at all.
    fn compare<T: Ord + Copy>(
        &mut self,
        seen: &BTreeSet<T>,
        expected: &BTreeMap<T, f32>,
        weight: impl Fn(T) -> f32,
        is_visible: impl Fn(T) -> bool,
    ) {
        for &item in seen {
            self.add(weight(item), expected.contains_key(&item));
        }
        for (&item, part) in expected {
            if !seen.contains(&item) && is_visible(item) {
                self.against += weight(item) * part;
            }
        }
    }
}

/// What is seen of a function: the known names of its callers and callees, and its constants.
#[derive(Debug, Default)]
pub struct Seen {
    /// Names of functions that refer to it.
    pub callers: BTreeSet<NameId>,
    /// Names of functions that it refers to.
    pub callees: BTreeSet<NameId>,
    /// Its constants.
    pub constants: BTreeSet<u32>,
}

impl Expectations {
    /// The expectations for all names of a table.
    pub fn of(table: &SignatureTable) -> Self {
        let count = table.len();
        let mut callees = vec![BTreeMap::new(); count];
        let mut callers = vec![BTreeMap::new(); count];
        let mut constants = vec![BTreeMap::new(); count];
        let mut constant_users: HashMap<u32, usize> = HashMap::new();
        for index in 0..count {
            let Some(signature) = table.signature(index as NameId) else { continue };
            for lists in [&signature.calls, &signature.addresses] {
                let parts = parts(lists, |element: &Element| *element);
                for (callee, part) in parts {
                    callees[index].insert(callee, part);
                    if let Some(callers) = callers.get_mut(usize::from(callee)) {
                        callers.insert(index as NameId, part);
                    }
                }
            }
            constants[index] = parts(&signature.constants, |constant| Some(*constant));
            constants[index].keys().for_each(|constant| *constant_users.entry(*constant).or_default() += 1);
        }
        let rarity = |users: usize| ((count + 1) as f32 / (users + 1) as f32).ln();
        Self {
            callee_weights: callers.iter().map(|callers| rarity(callers.len())).collect(),
            caller_weights: callees.iter().map(|callees| rarity(callees.len())).collect(),
            constant_weights: constant_users.into_iter().map(|(constant, users)| (constant, rarity(users))).collect(),
            callees,
            callers,
            constants,
        }
    }

    /// The names that a function of this name refers to.
    pub fn callees(&self, name: NameId) -> impl Iterator<Item = NameId> {
        self.callees.get(usize::from(name)).into_iter().flat_map(|callees| callees.keys().copied())
    }

    /// The names of functions that refer to it.
    pub fn callers(&self, name: NameId) -> impl Iterator<Item = NameId> {
        self.callers.get(usize::from(name)).into_iter().flat_map(|callers| callers.keys().copied())
    }

    /// How well the observations fit a name. `is_located` tells whether the function of a name is known.
    pub fn judge(&self, seen: &Seen, name: NameId, is_located: impl Fn(NameId) -> bool) -> SignatureEvidence {
        let index = usize::from(name);
        let mut evidence = SignatureEvidence::default();
        let (Some(callees), Some(callers), Some(constants)) =
            (self.callees.get(index), self.callers.get(index), self.constants.get(index))
        else {
            return evidence;
        };
        let weight = |weights: &[f32], name: NameId| weights.get(usize::from(name)).copied().unwrap_or(0.0);
        evidence.compare(&seen.callees, callees, |name| weight(&self.callee_weights, name), &is_located);
        evidence.compare(&seen.callers, callers, |name| weight(&self.caller_weights, name), &is_located);
        evidence.referrers = seen.callers.iter().filter(|caller| callers.contains_key(caller)).count();
        // Constants that no signature has say little: structures have other sizes in each build.
        let rare = |constant| self.constant_weights.get(&constant).copied().unwrap_or(1.0);
        evidence.compare(&seen.constants, constants, rare, |_| true);
        evidence
    }
}

/// For each item, the share of the lists that contain it.
fn parts<T, K: Ord + Copy>(lists: &BTreeSet<Vec<T>>, key: impl Fn(&T) -> Option<K>) -> BTreeMap<K, f32> {
    let mut parts = BTreeMap::new();
    let part = 1.0 / lists.len().max(1) as f32;
    for list in lists {
        for item in list.iter().filter_map(&key).collect::<BTreeSet<_>>() {
            *parts.entry(item).or_insert(0.0) += part;
        }
    }
    parts
}
