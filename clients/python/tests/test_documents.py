"""What README.md and docs/use/tune.md quote is in the scripts of examples/."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "clients" / "python" / "examples"


class DocumentsTest(unittest.TestCase):
    def test_quoted_code_is_in_the_examples(self):
        scripts = [path.read_text() for path in sorted(EXAMPLES.glob("*.py"))]
        self.assertEqual(len(scripts), 5)
        quoted = 0
        for page in (ROOT / "README.md", ROOT / "docs" / "use" / "tune.md"):
            for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
                with self.subTest(page=page.name, block=block):
                    self.assertTrue(any(block in script for script in scripts))
                    quoted += 1
        self.assertGreater(quoted, 5)

    def test_scripts_are_python(self):
        for path in EXAMPLES.glob("*.py"):
            compile(path.read_text(), str(path), "exec")


if __name__ == "__main__":
    unittest.main()
