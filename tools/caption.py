"""The name of caption_demo.py before 0.3. It forwards, and will be removed in 0.4."""

import runpy
import sys
from pathlib import Path

print('tools/caption.py is now tools/caption_demo.py; the old name will be removed in 0.4', file=sys.stderr)
runpy.run_path(str(Path(__file__).with_name('caption_demo.py')), run_name='__main__')
