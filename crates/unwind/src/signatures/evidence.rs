//! How well a function fits a name: the evidence for and against.
//!
//! What a function is called by, what it calls and what numbers it has are witnesses. One that is rare says more: each counts by the
//! logarithm of how rare it is among the signatures. What is to be expected and is not there, and what is there and was never seen,
//! speaks against it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::table::{Element, NameId, SignatureTable};

/// What is known of the names, in the form in which it is asked for.
#[derive(Debug)]
pub struct Expectations {
    /// By name: what a function of it refers to, and in which part of the builds.
    callees: Vec<BTreeMap<NameId, f32>>,
    /// The same the other way round.
    callers: Vec<BTreeMap<NameId, f32>>,
    constants: Vec<BTreeMap<u32, f32>>,
    /// How much it says that a function refers to this name, is referred to by it, or has this number.
    callee_weights: Vec<f32>,
    caller_weights: Vec<f32>,
    constant_weights: HashMap<u32, f32>,
}

/// What has to speak for a name: two witnesses, each of which one name in 150 has, or more that say less. This and what follows was
/// set by builds that no signature was learned from (docs/symbols.md).
const ENOUGH: f32 = 10.0;

/// What has to if witnesses have said already where exactly they refer to it.
const ENOUGH_TO_CONFIRM: f32 = 4.0;

/// What may speak against a name, as a part of what speaks for it: compilers make some calls a part of the caller.
const MOST_AGAINST: f32 = 0.4;

/// How far the next name must be behind.
pub const MARGIN: f32 = 8.0;

/// What speaks for a name, and against it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignatureEvidence {
    /// For it.
    pub for_it: f32,
    /// Against it.
    pub against: f32,
    /// How many witnesses speak for it.
    pub witnesses: usize,
    /// How many of these refer to it.
    pub referrers: usize,
}

impl SignatureEvidence {
    /// Whether it suffices for a name.
    pub fn is_clear(&self) -> bool {
        self.referrers >= 1
            && self.witnesses >= 2
            && self.for_it >= ENOUGH
            && self.against <= self.for_it * MOST_AGAINST
    }

    /// Whether it confirms a name that other witnesses have given.
    pub fn confirms(&self) -> bool {
        self.for_it >= ENOUGH_TO_CONFIRM && self.against <= self.for_it * MOST_AGAINST
    }

    /// What remains.
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

    /// One kind of witnesses: what is seen, what is expected, and whether it could be seen if it were there.
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

/// What is seen of a function: names of those that call it and that it calls, as far as they are known, and its numbers.
#[derive(Debug, Default)]
pub struct Seen {
    /// Who refers to it.
    pub callers: BTreeSet<NameId>,
    /// What it refers to.
    pub callees: BTreeSet<NameId>,
    /// Its numbers.
    pub constants: BTreeSet<u32>,
}

impl Expectations {
    /// Of all names of a table.
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

    /// The names of those that refer to it.
    pub fn callers(&self, name: NameId) -> impl Iterator<Item = NameId> {
        self.callers.get(usize::from(name)).into_iter().flat_map(|callers| callers.keys().copied())
    }

    /// How well what is seen of a function fits a name. `is_located` tells of which names the functions are known.
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
        // Numbers that no signature has say little: structures have other sizes in each build.
        let rare = |constant| self.constant_weights.get(&constant).copied().unwrap_or(1.0);
        evidence.compare(&seen.constants, constants, rare, |_| true);
        evidence
    }
}

/// In which part of the lists each item is.
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
