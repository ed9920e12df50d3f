// In the form of an entry: typing a value means a value, choosing NULL means that, and what was changed is marked.
"use strict";

document.querySelectorAll(".edit").forEach((edit) => {
  const field = edit.querySelector("input, textarea");
  const kind = edit.querySelector("select");
  const was = [field.value, kind.value];
  const mark = () => field.classList.toggle("edited", field.value !== was[0] || kind.value !== was[1]);
  field.addEventListener("input", () => { kind.value = "text"; mark(); });
  kind.addEventListener("change", mark);
});
document.querySelectorAll(".role input").forEach((role) => {
  role.addEventListener("input", () => { role.closest("fieldset").querySelector('[value="role"]').checked = true; });
});
