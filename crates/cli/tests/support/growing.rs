//! Programs that need more memory than they were given, for one machine and for a cluster.

/// Grows from 100 to 450 MiB, a MiB at a time, and says where it is.
const GROWS: &str = r#"
import json, os, time
def status(**said):
    path = os.environ["STOKE_STATUS_FILE"]
    with open(path + ".new", "w") as file:
        json.dump(said, file)
    os.rename(path + ".new", path)
status(phase="load", input_bytes=12345)
kept = [bytearray(b"x" * (1 << 20)) for _ in range(100)]
time.sleep(LOADS)
status(phase="train", step=0, input_bytes=12345)
for step in range(350):
    kept.append(bytearray(b"x" * (1 << 20)))
    time.sleep(PAUSE)
    if step % 10 == 0:
        status(phase="train", step=step, input_bytes=12345)
time.sleep(2)
print("held it all", flush=True)
"#;

/// It loads for that many seconds, and `pause` seconds lie between two steps.
pub fn grows(loads: &str, pause: &str) -> String {
    GROWS.replace("LOADS", loads).replace("PAUSE", pause)
}

/// Keeps ten MiB more each step, and saves when it is asked to.
const LEAKS: &str = r#"
import json, os, time
directory = os.environ["STOKE_CHECKPOINT_DIR"]
def load():
    try:
        return int(open(f"{directory}/step").read())
    except FileNotFoundError:
        return 0
def save(step):
    with open(f"{directory}/step.new", "w") as file:
        file.write(str(step))
    os.rename(f"{directory}/step.new", f"{directory}/step")
    with open(os.environ["STOKE_STATUS_FILE"], "w") as file:
        json.dump({"step": step, "saved_step": step}, file)
kept = [bytearray(b"x" * (1 << 20)) for _ in range(100)]
seen = ""
begin = load()
print(f"from step {begin}", flush=True)
for step in range(begin, 35):
    with open(f"{directory}/done", "a") as done:
        done.write(f"{os.environ['STOKE_ATTEMPT']} {step}\n")
    kept.append(bytearray(b"x" * (10 << 20)))
    time.sleep(PAUSE)
    asked = open(os.environ["STOKE_CHECKPOINT_REQUEST"]).read()
    if asked and asked != seen:
        seen = asked
        save(step + 1)
        print(f"saved at {step + 1}: {asked}", flush=True)
save(35)
with open(f"{directory}/done") as done:
    print(done.read(), flush=True)
"#;

/// A step takes `pause` seconds. Its last 64 MiB, in which it is asked, last six of them.
pub fn leaks(pause: &str) -> String {
    LEAKS.replace("PAUSE", pause)
}

/// The same for a program that looks at no file: what asks it is a signal, which it has a handler for once it has loaded.
pub fn leaks_and_heeds_a_signal(pause: &str) -> String {
    const ASKED: &str = r#"    asked = open(os.environ["STOKE_CHECKPOINT_REQUEST"]).read()
    if asked and asked != seen:
        seen = asked
"#;
    let heeding = "    if signals:
        asked = signals.pop()
";
    let handler = r#"signals = []
import signal
signal.signal(signal.SIGUSR1, lambda *_: signals.append("by signal"))
begin = load()"#;
    assert!(LEAKS.contains(ASKED), "the two are one program");
    leaks(pause)
        .replace(ASKED, heeding)
        .replace("begin = load()", handler)
}

/// Reads what [`LEAKS`] printed in the end: every step was done, and none twice but those after the last checkpoint.
pub fn check_steps(printed: &str, attempts: usize) {
    let steps: Vec<(usize, u32)> = printed
        .lines()
        .filter_map(|line| {
            let (attempt, step) = line.split_once(' ')?;
            Some((attempt.parse().ok()?, step.parse().ok()?))
        })
        .collect();
    let mut reached = 0;
    for attempt in 1..=attempts {
        let own = steps.iter().filter(|(of, _)| *of == attempt);
        let own: Vec<u32> = own.map(|(_, step)| *step).collect();
        // The last step may have been done when it was stopped.
        let Some(&first) = own.first() else {
            assert_eq!((attempt, reached), (attempts, 35), "each attempt gets on");
            continue;
        };
        assert!(attempt == 1 || first > 0, "attempt {attempt} begins anew");
        assert!(
            first <= reached && first + 8 >= reached,
            "attempt {attempt} is at {first} after {reached}: {steps:?}"
        );
        assert!(own.windows(2).all(|pair| pair[1] == pair[0] + 1));
        reached = own.last().map_or(reached, |last| last + 1);
    }
    assert_eq!(reached, 35, "{steps:?}");
}
