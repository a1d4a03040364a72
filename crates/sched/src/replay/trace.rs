//! A trace as it is published: nodes and pods as CSV, and the order in which the pods arrive.

use std::collections::BTreeMap;

use crate::value::{Ask, Model, Models, Room, WHOLE};

/// GPUs of one node, at most.
const GPUS_MAX: u32 = 1024;
/// Larger amounts are mistakes, and their sums would not fit.
const AMOUNT_MAX: u64 = 1 << 40;

/// What arrives where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Each node as it is before anything arrives.
    pub(super) nodes: Vec<Room>,
    /// Pods that ask for the same are of one kind.
    pub(super) kinds: Vec<Ask>,
    /// The kind of each pod of the pod file.
    pub(super) pods: Vec<u32>,
    /// Pods, in the order of their arrival.
    pub(super) order: Vec<u32>,
    pub(super) gpu_milli: u64,
}

/// Something in a file is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct TraceError {
    pub file: File,
    /// The first line is 1.
    pub line: usize,
    pub what: String,
}

/// The files a trace is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    Nodes,
    Pods,
    Order,
}

impl std::fmt::Display for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Order => "order",
        })
    }
}

impl Trace {
    /// Reads the text of the three files.
    ///
    /// Nodes: `sn,cpu_milli,memory_mib,gpu,model`. Pods: `name,cpu_milli,memory_mib,num_gpu,gpu_milli` and, if there, `gpu_spec`. Columns are
    /// found by their names; others are not looked at. Order: row numbers of the pod file from 0, separated by blanks.
    pub fn parse(nodes: &str, pods: &str, order: &str) -> Result<Self, TraceError> {
        let mut models = BTreeMap::new();
        let nodes = read_nodes(nodes, &mut models)?;
        let (kinds, pods) = read_pods(pods, &mut models)?;
        let order = read_order(order, pods.len())?;
        let gpu_milli = nodes.iter().map(Room::idle_milli).sum();
        if gpu_milli == 0 {
            return Err(TraceError {
                file: File::Nodes,
                line: 1,
                what: "no node has a GPU".to_owned(),
            });
        }
        Ok(Self {
            nodes,
            kinds,
            pods,
            order,
            gpu_milli,
        })
    }

    /// How many pods arrive.
    pub fn arrivals(&self) -> usize {
        self.order.len()
    }

    /// All GPUs, in thousandths of one.
    pub fn gpu_milli(&self) -> u64 {
        self.gpu_milli
    }

    pub(super) fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.order
            .iter()
            .map(|pod| &self.kinds[self.pods[*pod as usize] as usize])
    }
}

fn read_nodes(text: &str, models: &mut BTreeMap<String, Model>) -> Result<Vec<Room>, TraceError> {
    let mut table = Table::new(
        File::Nodes,
        text,
        &["cpu_milli", "memory_mib", "gpu", "model"],
    );
    table.read_header(&[])?;
    let mut nodes = Vec::new();
    while let Some(row) = table.next_row()? {
        let gpus = row.number("gpu", 2, u64::from(GPUS_MAX))?;
        let model = row.model(row.cells[3], models)?;
        let free = std::iter::repeat_n(WHOLE, gpus as usize);
        nodes.push(Room::new(
            row.number("cpu_milli", 0, AMOUNT_MAX)?,
            row.number("memory_mib", 1, AMOUNT_MAX)?,
            model,
            free,
        ));
    }
    Ok(nodes)
}

fn read_pods(
    text: &str,
    models: &mut BTreeMap<String, Model>,
) -> Result<(Vec<Ask>, Vec<u32>), TraceError> {
    let mut table = Table::new(
        File::Pods,
        text,
        &["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"],
    );
    table.read_header(&["gpu_spec"])?;
    let mut numbers = BTreeMap::new();
    let mut kinds = Vec::new();
    let mut pods = Vec::new();
    while let Some(row) = table.next_row()? {
        let gpus = row.number("num_gpu", 2, u64::from(GPUS_MAX))? as u32;
        let milli = row.number("gpu_milli", 3, u64::from(WHOLE))? as u16;
        if gpus > 0 && milli == 0 {
            return Err(row.error("gpu_milli is 0, but num_gpu is not".to_owned()));
        }
        if gpus > 1 && milli < WHOLE {
            return Err(row.error(format!(
                "{gpus} GPUs of {milli} thousandths: only one GPU can be asked for in part"
            )));
        }
        let mut allowed = Models::NONE;
        for name in row.cells[4]
            .split('|')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            allowed = allowed.with(row.model(name, models)?);
        }
        let ask = Ask {
            cpu: row.number("cpu_milli", 0, AMOUNT_MAX)?,
            memory: row.number("memory_mib", 1, AMOUNT_MAX)?,
            gpus,
            milli: if gpus == 0 { 0 } else { milli },
            models: if allowed.is_empty() {
                Models::ANY
            } else {
                allowed
            },
        };
        let kind = *numbers.entry(ask).or_insert_with(|| {
            kinds.push(ask);
            kinds.len() as u32 - 1
        });
        pods.push(kind);
    }
    Ok((kinds, pods))
}

fn read_order(text: &str, pods: usize) -> Result<Vec<u32>, TraceError> {
    let mut order = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in line.split_whitespace() {
            let what = match word.parse::<u32>() {
                Ok(row) if (row as usize) < pods => {
                    order.push(row);
                    continue;
                }
                Ok(row) => format!("{row} is no row of the pod file, which has {pods}"),
                Err(_) => format!("{word:?} is no row number"),
            };
            return Err(TraceError {
                file: File::Order,
                line: at + 1,
                what,
            });
        }
    }
    Ok(order)
}

/// CSV without quotes, as the traces have it; the columns that are asked for, in the order they are asked for.
struct Table<'a> {
    file: File,
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    wanted: &'static [&'static str],
    /// Where each wanted column is; the optional ones may be nowhere.
    columns: Vec<Option<usize>>,
    width: usize,
}

struct Row<'a> {
    file: File,
    line: usize,
    cells: Vec<&'a str>,
}

impl<'a> Table<'a> {
    fn new(file: File, text: &'a str, wanted: &'static [&'static str]) -> Self {
        Self {
            file,
            lines: text.lines().enumerate(),
            wanted,
            columns: Vec::new(),
            width: 0,
        }
    }

    fn error_at(&self, line: usize, what: String) -> TraceError {
        TraceError {
            file: self.file,
            line,
            what,
        }
    }

    fn read_header(&mut self, optional: &'static [&'static str]) -> Result<(), TraceError> {
        let Some((_, header)) = self.lines.next() else {
            return Err(self.error_at(1, "the file is empty".to_owned()));
        };
        let header: Vec<&str> = header
            .trim_start_matches('\u{feff}')
            .split(',')
            .map(str::trim)
            .collect();
        self.width = header.len();
        for wanted in self.wanted {
            let Some(column) = header.iter().position(|name| name == wanted) else {
                return Err(self.error_at(1, format!("there is no column {wanted}")));
            };
            self.columns.push(Some(column));
        }
        for wanted in optional {
            self.columns
                .push(header.iter().position(|name| name == wanted));
        }
        Ok(())
    }

    fn next_row(&mut self) -> Result<Option<Row<'a>>, TraceError> {
        let Some((at, text)) = self.lines.find(|(_, text)| !text.trim().is_empty()) else {
            return Ok(None);
        };
        let all: Vec<&str> = text.split(',').map(str::trim).collect();
        if all.len() != self.width {
            let what = format!(
                "{} columns, and {} in the first line",
                all.len(),
                self.width
            );
            return Err(self.error_at(at + 1, what));
        }
        let cells = self
            .columns
            .iter()
            .map(|column| column.map_or("", |column| all[column]))
            .collect();
        Ok(Some(Row {
            file: self.file,
            line: at + 1,
            cells,
        }))
    }
}

impl Row<'_> {
    fn error(&self, what: String) -> TraceError {
        TraceError {
            file: self.file,
            line: self.line,
            what,
        }
    }

    fn number(&self, name: &str, column: usize, most: u64) -> Result<u64, TraceError> {
        let cell = self.cells[column];
        match cell.parse::<u64>() {
            Ok(number) if number <= most => Ok(number),
            Ok(number) => Err(self.error(format!("{name} is {number}, above {most}"))),
            Err(_) => Err(self.error(format!("{name} is {cell:?}, which is no whole number"))),
        }
    }

    fn model(&self, name: &str, models: &mut BTreeMap<String, Model>) -> Result<Model, TraceError> {
        if let Some(model) = models.get(name) {
            return Ok(*model);
        }
        let Some(model) = Model::new(models.len()) else {
            return Err(self.error(format!(
                "{name} is one model of GPU too many; {} are told apart",
                Model::MAX
            )));
        };
        models.insert(name.to_owned(), model);
        Ok(model)
    }
}
