"""Puts the jar for Spark into the wheel, where a Java compiler and PySpark are at hand.

Without them the wheel has the sources only, and the jar is made when it is wanted first.
"""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

JAR = Path(__file__).parent / "stelae" / "connectors" / "spark_jar.py"


class BuildWithJar(build_py):
    """Makes the jar first; it is package data."""

    def run(self) -> None:
        runpy.run_path(str(JAR), run_name="__main__")
        super().run()


setup(cmdclass={"build_py": BuildWithJar})
