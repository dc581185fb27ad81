// A figure that scrolls, on a phone, can be reached and scrolled with the keyboard.
function makeScrollingFiguresReachable() {
  for (const image of document.querySelectorAll('.bd-article p > img[src$=".svg"]')) {
    const around = image.parentElement;
    if (around.scrollWidth > around.clientWidth) around.tabIndex = 0;
    else around.removeAttribute("tabindex");
  }
}
window.addEventListener("load", makeScrollingFiguresReachable);
window.addEventListener("resize", makeScrollingFiguresReachable);
