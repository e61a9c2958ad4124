"""The name of translation_demo.py before 0.3. It forwards, and will be removed in 0.4."""

import runpy
import sys
from pathlib import Path

print('tools/translate.py is now tools/translation_demo.py; the old name will be removed in 0.4', file=sys.stderr)
runpy.run_path(str(Path(__file__).with_name('translation_demo.py')), run_name='__main__')
