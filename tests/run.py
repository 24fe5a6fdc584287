"""Run every test: units and notebooks on all cores, then the browser alone, so that its times mean something.

Exit status 1 when a test failed, when a test of recorded samples was skipped although TELEKIT_SAMPLES names
them, or, where CI is set, when a browser test was skipped.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "test-results"
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
RUNS = {
    "tests": [
        "-n",
        "auto",
        "--dist",
        "loadfile",
        "-m",
        "not browser",
        *NBVAL,
        "--benchmark-disable",
        "tests",
        "notebooks",
    ],
    "browser": ["-p", "no:xdist", "-m", "browser", "tests/browser"],
}


def main() -> int:
    """Run both; return the worse status."""
    faults = []
    for name, arguments in RUNS.items():
        report = RESULTS / f"{name}.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        if subprocess.run(command, cwd=ROOT).returncode:
            faults.append(f"{name} failed")
        else:
            faults += unwanted_skips(name, report)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def unwanted_skips(name: str, report: Path) -> list[str]:
    """Skipped tests that the surroundings do not excuse."""
    faults = []
    for case in ET.parse(report).iter("testcase"):
        for skip in case.findall("skipped"):
            reason = skip.get("message", "")
            samples = "TELEKIT_SAMPLES" in reason and os.environ.get("TELEKIT_SAMPLES")
            browser = name == "browser" and os.environ.get("CI")
            if samples or browser:
                faults.append(f"skipped {case.get('classname')}::{case.get('name')}: {reason}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
