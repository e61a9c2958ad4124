"""Headless Chromium, driven through ChromeDriver by the WebDriver protocol: JSON over HTTP, so no package for it."""

import json
import shutil
import subprocess
import time
from base64 import b64decode
from urllib.request import Request, urlopen

FLAGS = (
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--window-size=1400,1000',
)


class Browser:
    """A browser with a new profile in an empty folder, and the commands that the tests need.

    Debian's packages are ``chromium`` and ``chromium-driver``.
    """

    def __init__(self, profile):
        self.options = {'binary': shutil.which('chromium'), 'args': [*FLAGS, f'--user-data-dir={profile}']}

    def __enter__(self):
        self.driver = subprocess.Popen(['chromedriver', '--port=0'], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if 'started successfully on port' in line:
                self.url = f'http://127.0.0.1:{line.rstrip(". " + chr(10)).split()[-1]}/session'
                break
        try:
            session = self(
                '',
                capabilities={
                    'alwaysMatch': {
                        'goog:chromeOptions': self.options,
                        'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'},
                    }
                },
            )
        except BaseException:
            self.driver.kill()
            raise
        self.url += f'/{session["sessionId"]}'
        return self

    def __exit__(self, *_):
        try:
            urlopen(Request(self.url, method='DELETE'), timeout=60).close()
        finally:
            self.driver.kill()
            self.driver.wait()

    def __call__(self, command, **arguments):
        request = Request(self.url + command, json.dumps(arguments).encode(), {'Content-Type': 'application/json'})
        with urlopen(request, timeout=300) as answer:
            return json.load(answer)['value']

    def open(self, url):
        self('/url', url='about:blank')  # else the browser's own first page is still loading
        self.requests()
        self('/url', url=url)

    def run(self, script):
        return self('/execute/sync', script=script, args=[])

    def wait_for(self, script, seconds=60):
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f'not within {seconds} s: {script}'
            time.sleep(0.1)

    def hover(self, selector, x, y):
        """Move the mouse to a point of an element, relative to its size."""
        left, top, width, height = self.run(
            f'const box = document.querySelector({selector!r}).getBoundingClientRect();'
            'return [box.left, box.top, box.width, box.height]'
        )
        move = dict(type='pointerMove', duration=0, x=round(left + x * width), y=round(top + y * height))
        self('/actions', actions=[dict(type='pointer', id='mouse', actions=[move])])

    def press(self, selector, key):
        """Press a key with an element in focus; its name as in KeyboardEvent."""
        self.run(f'document.querySelector({selector!r}).focus()')
        for kind in ('keyDown', 'keyUp'):
            text = {'text': key} if kind == 'keyDown' and len(key) == 1 else {}
            self('/goog/cdp/execute', cmd='Input.dispatchKeyEvent', params={'type': kind, 'key': key, **text})

    def screenshot(self):
        with urlopen(f'{self.url}/screenshot', timeout=300) as answer:
            return b64decode(json.load(answer)['value'])

    def console(self):
        """What the page has logged since the last call."""
        return [entry['message'] for entry in self('/se/log', type='browser')]

    def requests(self):
        """The URLs that it asked for since the last call, apart from those that hold their own content."""
        messages = (json.loads(entry['message'])['message'] for entry in self('/se/log', type='performance'))
        urls = [
            message['params']['request']['url']
            for message in messages
            if message['method'] == 'Network.requestWillBeSent'
        ]
        return [url for url in urls if not url.startswith('data:')]
