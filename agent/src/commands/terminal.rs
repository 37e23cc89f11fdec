//! The terminal of `lj-trace top`: acquires it, watches it, and restores it.

use std::io::{self, Stdin, Stdout};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};

use crate::exit::CommandError;

/// How many events may wait: nobody types faster.
const WAITING: usize = 256;

/// A terminal that is restored when this is dropped.
pub struct Terminal {
    inner: Option<DefaultTerminal>,
    events: Receiver<io::Result<Event>>,
    /// The descriptors of standard input and output. Both stay open while the terminal is in use.
    descriptors: [RawFd; 2],
}

impl Terminal {
    /// Takes over the terminal of standard input and output. It is restored even if lj-trace panics.
    ///
    /// # Errors
    /// The terminal cannot be used, or the system has no more threads.
    pub fn take(input: &Stdin, output: &Stdout) -> Result<Self, CommandError> {
        let (sender, events) = sync_channel(WAITING);
        let descriptors = [input.as_raw_fd(), output.as_raw_fd()];
        let inner = ratatui::try_init().map_err(|error| CommandError::io("use the terminal", &error))?;
        let terminal = Self { inner: Some(inner), events, descriptors };
        // A thread of its own: after a terminal is gone, crossterm's read never returns.
        let read = move || {
            loop {
                let event = event::read();
                let is_last = event.is_err();
                if sender.send(event).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("keys".to_owned()).spawn(read);
        thread.map_err(|error| CommandError::io("start a thread for the keys", &error))?;
        Ok(terminal)
    }

    /// Draws a picture.
    ///
    /// # Errors
    /// The terminal cannot be drawn on.
    pub fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> Result<(), CommandError> {
        let Some(inner) = &mut self.inner else { return Ok(()) };
        inner.draw(render).map(drop).map_err(|error| CommandError::io("draw on the terminal", &error))
    }

    /// The next event: a key press, or a new size.
    ///
    /// # Errors
    /// The keys cannot be read.
    pub fn event(&self) -> Result<Option<Event>, CommandError> {
        self.events.try_recv().ok().transpose().map_err(|error| CommandError::io("read the keys", &error))
    }

    /// Whether the terminal is gone: the window or the connection was closed. SIGHUP does not always come then: it may
    /// be ignored, as with `nohup`, and it goes only to the foreground of a session.
    pub fn has_gone(&self) -> bool {
        let mut polled = self.descriptors.map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
        // SAFETY: it is given as many valid `pollfd`s as it is told, and does not wait.
        let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
        let gone = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        count > 0 && polled.iter().any(|polled| polled.revents & gone != 0)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = ratatui::try_restore();
        if let Some(mut inner) = self.inner.take()
            && inner.show_cursor().is_err()
        {
            // Dropping it would report the error to a standard error that is mostly gone as well, and panic.
            std::mem::forget(inner);
        }
    }
}
