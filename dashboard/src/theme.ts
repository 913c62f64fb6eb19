import { computed, effect, signal } from '@preact/signals'

type Theme = 'light' | 'dark'

const THEME_ITEM = 'oncekey-theme'
const system = matchMedia('(prefers-color-scheme: dark)')
const systemTheme = signal<Theme>(system.matches ? 'dark' : 'light')
/** `null`: as the system has it. */
const chosen = signal<Theme | null>(asTheme(localStorage.getItem(THEME_ITEM)))

export const theme = computed<Theme>(() => chosen.value ?? systemTheme.value)

function asTheme(value: string | null): Theme | null {
  return value === 'light' || value === 'dark' ? value : null
}

export function toggleTheme(): void {
  const next = theme.value === 'dark' ? 'light' : 'dark'
  // What the system has anyway is not a choice: the page follows it again.
  chosen.value = next === systemTheme.value ? null : next
  if (chosen.value === null) localStorage.removeItem(THEME_ITEM)
  else localStorage.setItem(THEME_ITEM, chosen.value)
}

export function startTheme(): void {
  system.addEventListener('change', () => {
    systemTheme.value = system.matches ? 'dark' : 'light'
  })
  effect(() => {
    document.documentElement.dataset.theme = theme.value
  })
}

/** What a canvas can draw with: the value of a custom property as it stands in the theme of now. */
export function colorOf(property: string): string {
  const probe = document.createElement('i')
  probe.style.color = `var(${property})`
  document.body.append(probe)
  const { color } = getComputedStyle(probe)
  probe.remove()
  return color
}
