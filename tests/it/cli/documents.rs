//! What README.md and docs/ show of the command line is what it prints.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::Sandbox;
use crate::sample::sample;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A command as a page shows it, and what it prints there; `None` where the page shows no output.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    command: String,
    printed: Option<String>,
}

/// The commands of a page that call batchfit: in blocks of `console`, each after a `$ ` and before its output, and in
/// blocks of `sh`, one a line.
fn commands(page: &str) -> Vec<Example> {
    let mut commands = Vec::new();
    let mut kind = None;
    for line in page.lines() {
        match (kind, line.strip_prefix("```")) {
            (None, Some(opened)) => kind = Some(opened.trim()),
            (Some(_), Some(_)) => kind = None,
            (Some("console"), None) => {
                let last: Option<&mut Example> = commands.last_mut();
                if let Some(command) = line.strip_prefix("$ ") {
                    commands.push(Example {
                        command: command.to_owned(),
                        printed: Some(String::new()),
                    });
                } else if let Some(printed) = last.and_then(|shown| shown.printed.as_mut()) {
                    printed.push_str(line);
                    printed.push('\n');
                }
            }
            (Some("sh"), None) => commands.push(Example {
                command: line.to_owned(),
                printed: None,
            }),
            _ => {}
        }
    }
    commands.retain(|shown| shown.command.contains("batchfit ") && !needs_more(&shown.command));
    commands
}

/// Commands that need more than the program itself: a GPU, cuDNN, Python's packages, a server that is up or was and left a database,
/// time to compile.
fn needs_more(command: &str) -> bool {
    const WORDS: [&str; 17] = [
        "--ask-cudnn",
        "cuda:",
        "batchfit agent",
        "batchfit calibrate",
        "--on local",
        "batchfit run ",
        "batchfit db ",
        "batchfit keys ",
        "--device auto",
        "batchfit export",
        "batchfit serve",
        "pip install",
        "curl",
        "sqlite3",
        "docker",
        "cargo",
        "git clone",
    ];
    WORDS.iter().any(|word| command.contains(word))
}

/// Whether a text is as shown, where a line `...` stands for any number of lines.
fn is_as_shown(printed: &str, shown: &str) -> bool {
    let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let shown: Vec<&str> = shown.lines().map(str::trim_end).collect();
    matches(&printed, &shown)
}

fn matches(printed: &[&str], shown: &[&str]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [first, rest @ ..] if first.trim() == "..." => {
            (0..=printed.len()).any(|skipped| matches(&printed[skipped..], rest))
        }
        [first, rest @ ..] => printed.first() == Some(first) && matches(&printed[1..], rest),
    }
}

/// A folder with the files that pages speak of: a config, a model, and the repository's tests and settings.
fn place() -> Sandbox {
    let place = Sandbox::new();
    let golden = Path::new(ROOT).join("tests/golden");
    let model = fs::read_to_string(golden.join("huggingface/llama.json")).unwrap();
    let model: serde_json::Value = serde_json::from_str(&model).unwrap();
    place.write("config.json", &model["hf"].to_string());
    let at = place.directory.path();
    symlink(
        golden.join("exported/resnet18.json.gz"),
        at.join("model.json.gz"),
    )
    .unwrap();
    for folder in ["tests", "deploy"] {
        symlink(Path::new(ROOT).join(folder), at.join(folder)).unwrap();
    }
    place.write(
        "request.json",
        r#"{"model": {"preset": "resnet50"}, "training": {"precision": "amp_fp16"}, "device": "sim:rtx4090"}"#,
    );
    place
}

fn check(page: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_batchfit")).parent().unwrap();
    let mut wrong = Vec::new();
    for shown in commands(&text) {
        let place = place();
        let output = place
            .command("sh")
            .args([
                "-c",
                &format!("PATH={}:$PATH; {}", binary.display(), shown.command),
            ])
            .env("COLUMNS", "120")
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        let is_right = match &shown.printed {
            // Errors are shown with what a terminal shows: both streams.
            Some(expected) => {
                is_as_shown(&format!("{printed}{told}"), expected)
                    || is_as_shown(&printed, expected)
            }
            None => output.status.success(),
        };
        if !is_right {
            wrong.push(format!("{page}: $ {}\n{printed}{told}", shown.command));
        }
    }
    wrong
}

/// The pages for users, by their paths from the root.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut pending = vec![Path::new(ROOT).join("docs")];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let page = path.strip_prefix(ROOT).unwrap();
            pages.push(page.to_str().unwrap().to_owned());
        }
    }
    pages.sort();
    pages
}

#[test]
fn pages_show_what_commands_print() {
    let mut wrong = check("README.md");
    wrong.extend(sample(9, &pages()).flat_map(|page| check(page)));

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lines outside of blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchors that GitHub makes of a page's headings.
fn anchors(page: &str) -> Vec<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|it| it.is_alphanumeric() || "-_ ".contains(*it));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// The paths that `a/{b,c}.rs` stands for.
fn expanded(path: &str) -> Vec<String> {
    match path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        None => vec![path.to_owned()],
        Some((before, (names, after))) => names
            .split(',')
            .map(|name| format!("{before}{name}{after}"))
            .collect(),
    }
}

#[test]
fn files_that_the_map_and_the_recipes_name_are_there() {
    let mut missing = Vec::new();
    let mut looked_at = 0;
    for page in ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
        let quoted = prose(&text).flat_map(|line| line.split('`').skip(1).step_by(2));
        let words = quoted.flat_map(str::split_whitespace);
        for path in words.flat_map(expanded) {
            let is_path = ["crates/", "src/", "tests/", "docs/"]
                .iter()
                .any(|folder| path.starts_with(folder));
            if is_path && !path.contains("NAME") {
                looked_at += 1;
                if !Path::new(ROOT).join(&path).exists() {
                    missing.push(format!("{page}: {path}"));
                }
            }
        }
    }

    assert!(looked_at > 50, "{looked_at} paths were found");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn links_lead_to_files_and_headings_and_the_index_has_every_page() {
    const INDEX: &str = "docs/README.md";
    const OTHERS: [&str; 5] = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "deploy/README.md",
        "clients/python/README.md",
    ];
    let pages = pages();
    let mut indexed = vec![Path::new(ROOT).join(INDEX).canonicalize().unwrap()];
    let mut wrong = Vec::new();
    for page in pages.iter().map(String::as_str).chain(OTHERS) {
        let file = Path::new(ROOT).join(page);
        let text = fs::read_to_string(&file).unwrap();
        let links = prose(&text).flat_map(|line| line.split("](").skip(1));
        for link in links.filter_map(|rest| Some(rest.split_once(')')?.0)) {
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().unwrap().join(path),
            };
            let Ok(target) = target.canonicalize() else {
                wrong.push(format!("{page}: {link}"));
                continue;
            };
            if !anchor.is_empty()
                && !anchors(&fs::read_to_string(&target).unwrap()).contains(&anchor.to_owned())
            {
                wrong.push(format!("{page}: {link}"));
            }
            if page == INDEX {
                indexed.push(target);
            }
        }
    }
    let is_indexed =
        |page: &&String| indexed.contains(&Path::new(ROOT).join(page).canonicalize().unwrap());
    wrong.extend(
        pages
            .iter()
            .filter(|page| !is_indexed(page))
            .map(|page| format!("{INDEX} lacks {page}")),
    );

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_are_found_with_what_they_print() {
    let page = "```console\n$ batchfit presets\nresnet18\n...\n$ ls\n```\n```sh\nbatchfit devices\ncargo build\n```\n";

    let found = commands(page);

    assert_eq!(
        found,
        [
            Example {
                command: "batchfit presets".into(),
                printed: Some("resnet18\n...\n".into())
            },
            Example {
                command: "batchfit devices".into(),
                printed: None
            }
        ]
    );
    assert!(is_as_shown("resnet18\nresnet34\n", "resnet18\n...\n"));
    assert!(!is_as_shown("resnet34\n", "resnet18\n...\n"));
}

/// Nobody here owns the name on a registry: whoever registered it would decide what is installed.
#[test]
fn nothing_advises_to_install_a_package_of_another() {
    const INSTALL: [&str; 4] = ["pip install", "pipx install", "uv add", "cargo install"];
    let places = [
        "src",
        "crates",
        "docs",
        "clients",
        "deploy",
        "README.md",
        "CONTRIBUTING.md",
        "openapi.yaml",
    ];
    let mut pending: Vec<_> = places.map(|name| Path::new(ROOT).join(name)).into();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        let contents = fs::read(&path).unwrap();
        for line in String::from_utf8_lossy(&contents).lines() {
            let rest = INSTALL.iter().find_map(|it| Some(line.split_once(it)?.1));
            let rest = rest.and_then(|rest| rest.split(['`', '#']).next());
            let mut words = rest
                .into_iter()
                .flat_map(|rest| rest.split([' ', '\'', '"', ';', '(']));
            let is_ours = words.any(|word| word.starts_with("batchfit") && !word.contains('/'));
            assert!(!is_ours, "{}: {line}", path.display());
        }
    }
}
