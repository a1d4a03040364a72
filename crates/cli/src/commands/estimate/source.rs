//! Files a model is described by: Hugging Face's config.json, safetensors headers, and measurements.
//!
//! Invariant: of a file of weights only its header is read, and of no file more than its bound.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use stoke_memory::estimate::{
    self, ConfigError, HeaderError, Index, Measured, Shape, Tensors, header_length,
};

use crate::failure::{Exit, Failure};

/// Larger files are no configs, indexes or tables of measurements.
const TEXT_MAX: u64 = 64 << 20;

pub fn config(path: &Path) -> Result<Shape, Failure> {
    let text = text(
        path,
        "--config takes the config.json beside a model's weights",
    )?;
    Shape::from_config(&text).map_err(|error| {
        let what = format!("{} does not describe a transformer", path.display());
        let hint = match &error {
            ConfigError::Missing { .. } => "say it by flags: stoke estimate --help",
            _ => "--config takes the config.json beside a model's weights",
        };
        Failure::new(Exit::Refused, what).hint(hint).source(error)
    })
}

pub fn measured(path: &Path) -> Result<Vec<Measured>, Failure> {
    let hint = "a CSV file whose first line names the columns: model, layers, hidden, heads, method, precision, ...";
    let text = text(path, hint)?;
    estimate::check(&text).map_err(|error| {
        let what = format!("{}, {error}", path.display());
        Failure::new(Exit::Refused, what).hint(hint)
    })
}

/// The tensors of one file, or of all files that an index names.
pub fn tensors(path: &Path) -> Result<Tensors, Failure> {
    let mut tensors = Tensors::default();
    if path.extension().is_none_or(|extension| extension != "json") {
        add(&mut tensors, path)?;
        return Ok(tensors);
    }
    let index = text(path, WEIGHTS_HINT)?;
    let index = Index::parse(&index).map_err(|error| wrong_weights(path, error))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    for file in &index.files {
        add(&mut tensors, &folder.join(file))?;
    }
    Ok(tensors)
}

pub fn shape(path: &Path, tensors: &Tensors) -> Result<Shape, Failure> {
    tensors.shape().map_err(|error| wrong_weights(path, error))
}

pub fn params(path: &Path, tensors: &Tensors) -> Result<u64, Failure> {
    tensors.params().map_err(|error| wrong_weights(path, error))
}

const WEIGHTS_HINT: &str = "--safetensors takes model.safetensors, or model.safetensors.index.json with all its files beside it";

fn wrong_weights(path: &Path, error: HeaderError) -> Failure {
    let hint = match &error {
        HeaderError::Unknown(_) | HeaderError::Packed | HeaderError::Shape(_) => {
            "give the model's config.json as well: stoke estimate --config config.json"
        }
        _ => WEIGHTS_HINT,
    };
    let what = format!("{} does not tell the model's shape", path.display());
    Failure::new(Exit::Refused, what).hint(hint).source(error)
}

fn add(tensors: &mut Tensors, path: &Path) -> Result<(), Failure> {
    let unread = |error| unreadable(path, error, WEIGHTS_HINT);
    let mut file = File::open(path).map_err(unread)?;
    let mut first = [0; 8];
    file.read_exact(&mut first).map_err(unread)?;
    let length = header_length(first).map_err(|error| wrong_weights(path, error))?;
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(unread)?;
    tensors
        .add(&header)
        .map_err(|error| wrong_weights(path, error))
}

fn text(path: &Path, hint: &'static str) -> Result<String, Failure> {
    let unread = |error| unreadable(path, error, hint);
    let mut text = String::new();
    let read = File::open(path)
        .map_err(unread)?
        .take(TEXT_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unread)?;
    if read as u64 > TEXT_MAX {
        let what = format!("{} is larger than {} MiB", path.display(), TEXT_MAX >> 20);
        return Err(Failure::new(Exit::Refused, what).hint(hint));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: std::io::Error, hint: &'static str) -> Failure {
    let exit = match error.kind() {
        ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Refused,
    };
    Failure::new(exit, format!("cannot read {}", path.display()))
        .hint(hint)
        .source(error)
}
