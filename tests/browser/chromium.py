"""A real browser for tests: Debian's chromium without a window, driven over its own driver, without a network."""

import base64
import io
import json
import shutil
from contextlib import contextmanager

import pytest
from matplotlib.image import imread

# A container has no user namespaces to make a sandbox of, and little shared memory.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-device-scale-factor=1",
)


def missing():
    """What is not installed here, or nothing."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        lacking.append("selenium")
    return ", ".join(lacking)


class Browser:
    """A page, looked at and used as a person would."""

    def __init__(self, driver):
        self.driver = driver
        # Headless browsers begin with a page of their own.
        self.open("about:blank")
        self.driver.get_log("browser")

    def open(self, url):
        self.driver.get(str(url))

    def resize(self, width, height):
        """The size of what a page sees: a window itself is never as narrow as a phone."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, theme):
        """What the system asks for: dark or light."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script, *arguments):
        """The value of a piece of JavaScript."""
        return self.driver.execute_script(f"return ({script});", *arguments)

    def until(self, script, *arguments, seconds=30):
        """Wait until a piece of JavaScript is true, and give its value."""
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, seconds, poll_frequency=0.05)
        return wait.until(lambda _: self.run(script, *arguments), f"never true: {script}")

    def find(self, selector):
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector):
        """In the middle of the window, where nothing lies over it."""
        self.show(selector)
        self.find(selector).click()

    def show(self, selector):
        self.run("arguments[0].scrollIntoView({block: 'center'})", self.find(selector))

    def drag(self, selector, begin, end, height=0.5):
        """Pull the mouse over an element, from one share of its width to another."""
        from selenium.webdriver import ActionChains

        self.show(selector)
        place = self.find(selector)
        size = place.size
        across, up = size["width"], (height - 0.5) * size["height"]
        chain = ActionChains(self.driver, duration=40)
        chain.move_to_element_with_offset(place, round((begin - 0.5) * across), round(up)).click_and_hold()
        for share in (0.25, 0.5, 0.75, 1.0):
            chain.move_to_element_with_offset(place, round((begin + share * (end - begin) - 0.5) * across), round(up))
        chain.release().perform()

    def complaints(self):
        """What pages wrote to the console as an error or a warning since last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """Every address outside the page and the browser itself that was asked for since last asked."""
        told = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in told if m["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "blob:", "chrome:", "chrome-untrusted:"))]

    def pixels(self, selector):
        """What an element looks like, as rows of red, green and blue from 0 to 255."""
        shown = imread(io.BytesIO(self.find(selector).screenshot_as_png))
        return (shown[..., :3] * 255).round().astype("uint8")

    def picture(self, path):
        """The whole page, or rather what is drawn of it, as a PNG file."""
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@contextmanager
def started(profile):
    """A browser with a profile folder of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture
def browser(tmp_path):
    """A new browser, which remembers nothing."""
    lacking = missing()
    if lacking:
        pytest.skip(f"needs a browser to look at pages with; missing here: {lacking}")
    with started(tmp_path / "profile") as made:
        yield made
