"""Makes crates/server/src/http/page/vendor again: the libraries of the page in the browser, from npm's packages.

    python3 tests/page/vendor.py            # downloads, checks the digests, writes the files
    python3 tests/page/vendor.py --check    # says whether the committed files are those

What is changed in the files is what a browser without a bundler needs: where hooks finds preact, an export for uPlot, which
sets a global otherwise, and no comment that names a source map, which is not there.
"""

import hashlib
import io
import pathlib
import re
import sys
import tarfile
import urllib.request

FOLDER = pathlib.Path(__file__).parents[2] / "crates/server/src/http/page/vendor"
PACKAGES = {
    ("preact", "10.29.8"): "b18cb0a457f3d43c7bb30391a74ade7d13e03bc6e77915e061c70c0fe1123299",
    ("htm", "3.1.1"): "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
    ("uplot", "1.6.32"): "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
}
FILES = {
    "preact.js": ("preact", "dist/preact.module.js"),
    "hooks.js": ("preact", "hooks/dist/hooks.module.js"),
    "htm.js": ("htm", "dist/htm.module.js"),
    "uplot.js": ("uplot", "dist/uPlot.iife.min.js"),
    "uplot.css": ("uplot", "dist/uPlot.min.css"),
    "preact.LICENSE.txt": ("preact", "LICENSE"),
    "htm.LICENSE.txt": ("htm", "LICENSE"),
    "uplot.LICENSE.txt": ("uplot", "LICENSE"),
}


def package(name, version, digest):
    url = f"https://registry.npmjs.org/{name}/-/{name}-{version}.tgz"
    with urllib.request.urlopen(url, timeout=60) as answer:
        packed = answer.read()
    found = hashlib.sha256(packed).hexdigest()
    if found != digest:
        sys.exit(f"{url} has the digest {found}, not {digest}")
    return tarfile.open(fileobj=io.BytesIO(packed))


def changed(name, text):
    text = re.sub(r"\n?//# sourceMappingURL=.*\n?", "\n", text)
    if name == "hooks.js":
        text, count = re.subn(r'from"preact"', 'from"./preact.js"', text)
        assert count == 1
    if name == "uplot.js":
        text += "export default uPlot;\n"
    return text if text.endswith("\n") else text + "\n"


def main():
    packages = {name: package(name, version, digest) for (name, version), digest in PACKAGES.items()}
    different = []
    for name, (owner, inside) in FILES.items():
        text = changed(name, packages[owner].extractfile(f"package/{inside}").read().decode())
        file = FOLDER / name
        if "--check" in sys.argv:
            if not file.exists() or file.read_text() != text:
                different.append(name)
        else:
            file.write_text(text)
    sys.exit(f"not as published: {', '.join(different)}" if different else 0)


if __name__ == "__main__":
    main()
