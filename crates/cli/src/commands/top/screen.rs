//! The live picture on a terminal.

use std::time::Instant;

use anyhow::Context;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use tokio::sync::mpsc;

use super::Rhythm;
use crate::failure;
use crate::render::top::{
    JobRow, NodeRow, Picture, cpu_text, given_text, gpu_text, memory_text, percent,
};

/// Cells of a bar.
const BAR: usize = 20;

enum Key {
    Leave,
    Down,
    Up,
    Redraw,
}

struct Screen {
    picture: Picture,
    /// The first job shown.
    top: usize,
    trouble: Option<String>,
    looked: Instant,
}

/// Shows the picture until the person leaves. The terminal is put back as it was, also on an error.
pub async fn run(
    first: Picture,
    rhythm: Rhythm,
    look: impl AsyncFn() -> anyhow::Result<Picture>,
) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = show(&mut terminal, first, rhythm, look).await;
    ratatui::restore();
    result
}

async fn show(
    terminal: &mut ratatui::DefaultTerminal,
    first: Picture,
    rhythm: Rhythm,
    look: impl AsyncFn() -> anyhow::Result<Picture>,
) -> anyhow::Result<()> {
    let mut keys = read_keys();
    let mut screen = Screen {
        picture: first,
        top: 0,
        trouble: None,
        looked: Instant::now(),
    };
    let mut tick = tokio::time::interval(rhythm.every);
    loop {
        terminal
            .draw(|frame| screen.draw(frame))
            .context("cannot draw")?;
        tokio::select! {
            key = keys.recv() => match key {
                None | Some(Key::Leave) => return Ok(()),
                Some(Key::Down) => {
                    screen.top = (screen.top + 1).min(screen.picture.jobs.len().saturating_sub(1));
                }
                Some(Key::Up) => screen.top = screen.top.saturating_sub(1),
                Some(Key::Redraw) => {}
            },
            _ = tick.tick() => match look().await {
                Ok(picture) => {
                    screen.picture = picture;
                    screen.trouble = None;
                    screen.looked = Instant::now();
                }
                // The last picture stays; the engine may come back.
                Err(error) => screen.trouble = Some(failure::sentence(&error, &rhythm.place)),
            },
        }
    }
}

/// Keys are read by a thread of their own: reading blocks, and ends with the process.
fn read_keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind == KeyEventKind::Release => continue,
                Event::Key(key) => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => Key::Leave,
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        Key::Leave
                    }
                    KeyCode::Down | KeyCode::Char('j') => Key::Down,
                    KeyCode::Up | KeyCode::Char('k') => Key::Up,
                    _ => continue,
                },
                _ => Key::Redraw,
            };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Screen {
    fn draw(&self, frame: &mut Frame<'_>) {
        let nodes = self.picture.nodes.len().min(8) as u16;
        let [head, node_area, job_area, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(nodes + 2),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(self.headline()), head);
        self.draw_nodes(frame, node_area);
        self.draw_jobs(frame, job_area);
        let foot_text = match &self.trouble {
            Some(trouble) => Line::from(format!("{trouble} (the picture is old)")).red(),
            None => Line::from("q leaves   up/down scrolls").dim(),
        };
        frame.render_widget(Paragraph::new(foot_text), foot);
    }

    fn headline(&self) -> Line<'static> {
        let count = |phase: &str| {
            self.picture
                .jobs
                .iter()
                .filter(|job| job.phase == phase)
                .count()
        };
        let age = self.looked.elapsed().as_secs();
        let age = if age > 3 {
            format!("   {age}s old")
        } else {
            String::new()
        };
        Line::from(vec![
            Span::from("stoke top").bold(),
            Span::from(format!(
                "   {} running   {} waiting   {} failed{age}",
                count("Running"),
                count("Queued"),
                count("Failed")
            )),
        ])
    }

    fn draw_nodes(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.picture.nodes.iter().map(|node: &NodeRow| {
            let fraction = |used: u64, all: u64| {
                if all == 0 {
                    0.0
                } else {
                    used as f64 / all as f64
                }
            };
            Row::new(vec![
                Cell::from(node.name.clone()),
                Cell::from(bar(fraction(node.memory_used, node.memory))),
                Cell::from(memory_text(Some(node.memory_used), Some(node.memory))),
                Cell::from(bar(fraction(node.cpu_used_milli, node.cpu_milli))),
                Cell::from(format!(
                    "{} / {}",
                    cpu_text(Some(node.cpu_used_milli)),
                    cpu_text(Some(node.cpu_milli))
                )),
                Cell::from(gpu_text(node)),
            ])
        });
        let widths = [
            Constraint::Min(12),
            Constraint::Length(BAR as u16),
            Constraint::Length(20),
            Constraint::Length(BAR as u16),
            Constraint::Length(14),
            Constraint::Length(20),
        ];
        let head = Row::new(["NODE", "MEMORY OF JOBS", "", "CPU OF JOBS", "", "GPUS"]).bold();
        frame.render_widget(Table::new(rows, widths).header(head), area);
    }

    fn draw_jobs(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.picture.jobs.iter().skip(self.top).map(|job: &JobRow| {
            let fullest = job.fullest();
            let usage = fullest.map(|worker| worker.usage).unwrap_or_default();
            let fullness = fullest.and_then(super::top::WorkerRow::fullness);
            Row::new(vec![
                Cell::from(job.name.clone()).bold(),
                Cell::from(job.phase.clone()).style(phase_style(&job.phase)),
                Cell::from(job.ready.clone()),
                Cell::from(fullness.map(bar).unwrap_or_default()),
                Cell::from(fullness.map(percent).unwrap_or_default()),
                Cell::from(memory_text(usage.memory, usage.limit)),
                Cell::from(cpu_text(job.cpu_milli())),
                Cell::from(given_text(job.gpus)),
                Cell::from(job.since.clone()),
                Cell::from(job.why.clone()).dim(),
            ])
        });
        let widths = [
            Constraint::Min(16),
            Constraint::Length(10),
            Constraint::Length(7),
            Constraint::Length(BAR as u16),
            Constraint::Length(5),
            Constraint::Length(20),
            Constraint::Length(6),
            Constraint::Length(4),
            Constraint::Length(7),
            Constraint::Min(10),
        ];
        let head = Row::new([
            "JOB",
            "PHASE",
            "WORKERS",
            "MEMORY, FULLEST",
            "",
            "OF ITS LIMIT",
            "CPU",
            "GPUS",
            "SINCE",
            "WHY",
        ])
        .bold();
        frame.render_widget(Table::new(rows, widths).header(head), area);
    }
}

/// Green, then yellow, then red: near its limit a worker is about to be killed.
fn bar(fraction: f64) -> Line<'static> {
    let filled = ((fraction * BAR as f64).round() as usize).min(BAR);
    let color = match fraction {
        f if f >= 0.9 => Color::Red,
        f if f >= 0.75 => Color::Yellow,
        _ => Color::Green,
    };
    Line::from(vec![
        Span::styled("█".repeat(filled), Style::new().fg(color)),
        Span::styled("░".repeat(BAR - filled), Style::new().fg(Color::DarkGray)),
    ])
}

fn phase_style(phase: &str) -> Style {
    match phase {
        "Running" => Style::new().fg(Color::Cyan),
        "Complete" => Style::new().fg(Color::Green),
        "Failed" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Yellow),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::render::fixtures;
    use crate::render::top::picture;

    #[test]
    fn the_picture_fits_a_terminal() {
        let screen = Screen {
            picture: picture(
                &[fixtures::running()],
                &[fixtures::pod(2, 0, 2 << 30), fixtures::pod(2, 1, 7 << 30)],
                &[fixtures::node()],
                fixtures::now(),
            ),
            top: 0,
            trouble: None,
            looked: Instant::now(),
        };
        let mut terminal = Terminal::new(TestBackend::new(130, 10)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        insta::assert_snapshot!(terminal.backend());
        // A window of almost nothing must not break it.
        let mut tiny = Terminal::new(TestBackend::new(3, 2)).unwrap();
        tiny.draw(|frame| screen.draw(frame)).unwrap();
    }
}
