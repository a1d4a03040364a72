//! A training that writes checkpoints as it is told to, and what is known of their copies from outside.

use std::fs;
use std::path::Path;

/// Writes checkpoints up to the step that `want` says, and ends when it is told to: what was wanted before that is written first. Each has
/// `size` bytes beside its step.
pub const TRAIN: &str = r#"
folder=$1
step=0
[ -n "$STOKE_RESUME_FROM" ] && step=$(cat "$STOKE_RESUME_FROM/state")
echo "from $step"
cd "$STOKE_CHECKPOINT_DIR"
finish=
while [ -z "$finish" ]; do
    [ -e "$folder/finish" ] && finish=yes
    want=$(cat "$folder/want")
    while [ "$step" -lt "$want" ]; do
        step=$((step + 1))
        mkdir -p ".step-$step.writing/rank-0"
        echo "$step" > ".step-$step.writing/state"
        head -c "$(cat "$folder/size")" /dev/urandom > ".step-$step.writing/rank-0/weights"
        echo "{\"step\": $step}" > ".step-$step.writing/complete"
        mv ".step-$step.writing" "step-$step"
        echo "$step" > "$folder/at"
    done
    sleep 0.1
done
"#;

/// Tells the training, in one piece.
pub fn set(folder: &Path, name: &str, text: &str) {
    let draft = folder.join(format!(".{name}"));
    fs::write(&draft, text).expect("a file");
    fs::rename(draft, folder.join(name)).expect("moved");
}

/// A text that is nowhere else.
pub fn unique(what: &str) -> String {
    let nanos = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
    format!("{what}-{nanos}-never-told")
}

/// Processes that show the text to whoever lists them.
pub fn who_shows(text: &str, but: Option<u32>) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let pid = entry.file_name().to_string_lossy().parse::<u32>().ok();
        let Some(pid) = pid.filter(|pid| Some(*pid) != but) else {
            continue;
        };
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(entry.path().join(file)).unwrap_or_default();
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            if shown.contains(text) {
                found.push(format!("{pid} {file}: {shown}"));
            }
        }
    }
    found
}

/// The copies that are complete.
pub fn complete(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let whole = entries.filter(|it| it.path().join(".stoke-manifest.json").exists());
    let mut names: Vec<String> = whole
        .map(|it| it.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
