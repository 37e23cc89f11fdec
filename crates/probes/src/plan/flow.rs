//! The control flow of a function.

use std::collections::BTreeMap;

use super::arguments::ArgumentState;
use crate::arch::{Control, MachineInstruction};

/// Why the paths through a function are not clear. Then only its first instruction is certain to be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unclear {
    /// An instruction cannot be decoded.
    #[error("the bytes at +{0:#x} are no instruction")]
    Undecodable(usize),
    /// Control runs past the known bytes other than by a jump.
    #[error("its code goes on after +{0:#x}, where it is not known")]
    Endless(usize),
    /// A jump whose target is computed.
    #[error("the jump at +{0:#x} has a computed target")]
    ComputedJump(usize),
    /// A jump out of the function that is no tail call: to a part of it elsewhere, which may come back.
    #[error("the jump at +{0:#x} goes to code elsewhere that may come back")]
    Outside(usize),
    /// A jump or call into the middle of an instruction, or a call into the function's own middle.
    #[error("the instruction at +{0:#x} leads into the middle of the code in an unusual way")]
    IntoMiddle(usize),
    /// An instruction that changes the control flow in a way that the analysis does not follow.
    #[error("the instruction at +{0:#x} may continue anywhere")]
    Unusual(usize),
}

/// Where control goes after an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the instruction at this offset.
    One(usize),
    /// To one of two: where a conditional jump leads when taken, and when not.
    Branch {
        /// Offset of the target.
        taken: usize,
        /// Offset of the instruction after it.
        not_taken: usize,
    },
    /// Out of the function: a return, a tail call, or the end of the program.
    Exit,
}

/// One instruction that control can reach.
#[derive(Clone, Debug)]
pub struct FlowNode {
    /// The instruction, decoded.
    pub instruction: MachineInstruction,
    /// What is known right before the instruction; `None` if control never gets here.
    pub state: Option<ArgumentState>,
    /// Where control goes from here.
    pub next: Next,
}

impl FlowNode {
    /// Offsets that control goes to from here.
    pub fn successors(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match self.next {
            Next::One(next) => (Some(next), None),
            Next::Branch { taken, not_taken } => (Some(taken), Some(not_taken)),
            Next::Exit => (None, None),
        };
        first.into_iter().chain(second)
    }
}

/// A function as a graph of its instructions, by offset from its first byte.
#[derive(Clone, Debug)]
pub struct Flow {
    nodes: BTreeMap<usize, FlowNode>,
}

impl Flow {
    /// Follows all paths through the function whose bytes are `code`, starting at its first byte.
    ///
    /// # Errors
    /// [`Unclear`] if some path cannot be followed.
    pub fn of(code: &[u8]) -> Result<Self, Unclear> {
        let mut nodes = BTreeMap::new();
        let mut todo = vec![0];
        while let Some(offset) = todo.pop() {
            if nodes.contains_key(&offset) {
                continue;
            }
            let node = decode(code, offset)?;
            todo.extend(node.successors());
            nodes.insert(offset, node);
        }
        let mut end_of_previous = 0;
        for (&offset, node) in &nodes {
            if offset < end_of_previous {
                return Err(Unclear::IntoMiddle(offset));
            }
            end_of_previous = offset + node.instruction.size();
        }
        let mut flow = Self { nodes };
        flow.follow_arguments();
        flow.check_tail_calls()?;
        Ok(flow)
    }

    /// All instructions that control can reach, with their offsets.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &FlowNode)> {
        self.nodes.iter().map(|(&offset, node)| (offset, node))
    }

    /// The instruction at an offset.
    pub fn node(&self, offset: usize) -> Option<&FlowNode> {
        self.nodes.get(&offset)
    }

    /// Whether every path from the entry to an exit passes exactly one of `points`, and passes it once.
    pub fn passes_once(&self, points: &[usize]) -> bool {
        // For each instruction, how many points a path may have passed before it: bit 0 means none, bit 1 means one.
        const NONE: u8 = 1;
        const ONE: u8 = 2;
        let mut passed: BTreeMap<usize, u8> = BTreeMap::from([(0, NONE)]);
        let mut todo = vec![0];
        while let Some(offset) = todo.pop() {
            let Some(node) = self.nodes.get(&offset) else { return false };
            let mut counts = passed.get(&offset).copied().unwrap_or(0);
            if points.contains(&offset) {
                if counts != NONE {
                    return false;
                }
                counts = ONE;
            }
            if node.next == Next::Exit && counts != ONE {
                return false;
            }
            for next in node.successors().filter(|&next| self.is_reached(next)) {
                let known = passed.entry(next).or_default();
                if *known | counts != *known {
                    *known |= counts;
                    todo.push(next);
                }
            }
        }
        true
    }

    /// Whether control can reach an instruction, given what the branches before it have shown.
    pub fn is_reached(&self, offset: usize) -> bool {
        self.nodes.get(&offset).is_some_and(|node| node.state.is_some())
    }

    /// Fills in what is known before each instruction: what holds on every path to it.
    fn follow_arguments(&mut self) {
        let mut todo = vec![(0, ArgumentState::entry())];
        // This ends: each further visit to an instruction leaves less knowledge before it.
        while let Some((offset, state)) = todo.pop() {
            let Some(node) = self.nodes.get_mut(&offset) else { continue };
            let joined = node.state.as_ref().map_or_else(|| state.clone(), |known| known.join(&state));
            if node.state.as_ref() == Some(&joined) {
                continue;
            }
            let after = joined.after(&node.instruction);
            match node.next {
                Next::One(next) => todo.push((next, after)),
                Next::Branch { taken, not_taken } => {
                    let sides = [(taken, true), (not_taken, false)];
                    let sides = sides.map(|(next, side)| after.branch(&node.instruction, side).map(|s| (next, s)));
                    todo.extend(sides.into_iter().flatten());
                }
                Next::Exit => {}
            }
            node.state = Some(joined);
        }
    }

    /// A jump that leaves the function is a tail call only if the stack is as it was at the entry. Any other such jump
    /// goes to a part of the function that the compiler has moved elsewhere.
    fn check_tail_calls(&self) -> Result<(), Unclear> {
        let leaves = |node: &FlowNode| {
            let control = node.instruction.control();
            node.next == Next::Exit && matches!(control, Control::Jump(_) | Control::TableJump | Control::ComputedJump)
        };
        let no_tail_call = |(_, node): &(usize, &FlowNode)| {
            leaves(node) && node.state.as_ref().is_some_and(|state| !state.stack_is_as_at_entry())
        };
        self.nodes().find(no_tail_call).map_or(Ok(()), |(offset, _)| Err(Unclear::Outside(offset)))
    }
}

/// Decodes the instruction at `offset`. Addresses are offsets, so that branch targets are offsets as well.
fn decode(code: &[u8], offset: usize) -> Result<FlowNode, Unclear> {
    let bytes = code.get(offset..).filter(|bytes| !bytes.is_empty()).ok_or(Unclear::Endless(offset))?;
    let instruction = MachineInstruction::decode(bytes, offset as u64).ok_or(Unclear::Undecodable(offset))?;
    let following = offset + instruction.size();
    let inside = |target: u64| usize::try_from(target).ok().filter(|&target| target < code.len());
    let next = match instruction.control() {
        // Compilers place calls that never return (`abort`) at the end of a function.
        Control::Call(_) if following >= code.len() => Next::Exit,
        Control::Call(target) if target.and_then(inside).is_some_and(|target| target != 0) => {
            return Err(Unclear::IntoMiddle(offset));
        }
        Control::Next | Control::Call(_) => Next::One(following),
        Control::Jump(target) => inside(target).map_or(Next::Exit, Next::One),
        Control::Branch(target) => match inside(target) {
            Some(taken) => Next::Branch { taken, not_taken: following },
            None => return Err(Unclear::Outside(offset)),
        },
        Control::TableJump | Control::Return | Control::Nowhere => Next::Exit,
        Control::ComputedJump => return Err(Unclear::ComputedJump(offset)),
        Control::Unusual => return Err(Unclear::Unusual(offset)),
    };
    Ok(FlowNode { instruction, state: None, next })
}

// They have its code.
#[cfg(target_arch = "x86_64")]
#[cfg(test)]
mod tests {
    use super::*;

    /// `test rcx, rcx; je +9; nop; jmp +10; nop; ret`
    const DIAMOND: &[u8] = &[0x48, 0x85, 0xc9, 0x74, 0x03, 0x90, 0xeb, 0x01, 0x90, 0xc3];

    #[test]
    fn counts_the_points_on_every_way() {
        let flow = Flow::of(DIAMOND).unwrap();
        assert!(flow.passes_once(&[3]));
        assert!(flow.passes_once(&[5, 8]));
        assert!(flow.passes_once(&[6, 8]));
        assert!(flow.passes_once(&[9]));
        assert!(!flow.passes_once(&[5]), "the other side passes none");
        assert!(!flow.passes_once(&[3, 8]), "one side passes two");
        assert!(!flow.passes_once(&[5, 9]));
        assert!(!flow.passes_once(&[]));
    }

    #[test]
    fn a_point_in_a_loop_is_passed_more_than_once() {
        // nop; dec rax; jne back to the nop; nop; ret
        let flow = Flow::of(&[0x90, 0x48, 0xff, 0xc8, 0x75, 0xfa, 0x90, 0xc3]).unwrap();
        assert!(!flow.passes_once(&[0]));
        assert!(flow.passes_once(&[6]));
    }

    #[test]
    fn refuses_what_it_cannot_follow() {
        assert_eq!(Flow::of(&[]).unwrap_err(), Unclear::Endless(0));
        assert_eq!(Flow::of(&[0x90]).unwrap_err(), Unclear::Endless(1));
        assert_eq!(Flow::of(&[0x06, 0xc3]).unwrap_err(), Unclear::Undecodable(0));
        assert_eq!(Flow::of(&[0x90, 0xff, 0xe0]).unwrap_err(), Unclear::ComputedJump(1), "jmp rax");
        assert_eq!(Flow::of(&[0x74, 0x7f, 0xc3]).unwrap_err(), Unclear::Outside(0), "je to a cold part");
        let moved = [0x53, 0xe9, 0, 1, 0, 0]; // push rbx; jmp out
        assert_eq!(Flow::of(&moved).unwrap_err(), Unclear::Outside(1));
        let overlapping = [0x74, 0x01, 0x48, 0x85, 0xc9, 0xc3]; // je into the middle of test rcx, rcx
        assert!(matches!(Flow::of(&overlapping), Err(Unclear::IntoMiddle(_))));
        assert_eq!(Flow::of(&[0xcc, 0xc3]).unwrap_err(), Unclear::Unusual(0), "int3");
    }
}
